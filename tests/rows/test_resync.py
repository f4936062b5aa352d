"""One row of an array that is broken, in any of the usual ways, costs that row and no other."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.rows.formats import json_array, read_file
from stages.rows.formats.record import Record

SOUND = '{"instruction": "q", "input": "", "output": "abc"}'
# A row of its own form: "x" stands for what a person types.
FLAT = {
    "a brace is missing": SOUND[:-1],
    "a quote and the brace are missing": SOUND[:-2],
    "a quote is missing": SOUND[:-2] + "}",
    "the last half is missing": SOUND[:30],
    "a quote inside": SOUND.replace("abc", 'say "x'),
    "two quotes inside": SOUND.replace("abc", 'say "x" here'),
    "quotes and brackets inside": SOUND.replace("abc", 'say "{[x" here'),
    "a bracket too many": SOUND.replace("}", "]}"),
    "a comma is missing": SOUND.replace(', "output', ' "output'),
    "a comma too many": SOUND.replace("}", ",}"),
    "a line end inside": SOUND.replace("abc", "a\nb"),
    "a line end and braces inside": SOUND.replace("abc", "a {\nb"),
    "a comment": SOUND.replace("}", "/* {x */}"),
    "no value": SOUND.replace('"abc"', ""),
    "a word": SOUND.replace('"abc"', "None"),
}
TALK = (
    '{"id": 1, "messages": [{"role": "user", "content": "q"}, '
    '{"role": "assistant", "content": "abc"}], "n": 1}'
)
NESTED = {
    "a brace of the row is missing": TALK[:-1],
    "a brace inside is missing": TALK.replace('"abc"}', '"abc"'),
    "a brace between is missing": TALK.replace('"q"}', '"q"'),
    "a bracket inside is missing": TALK.replace("]", ""),
    "the rest is missing": TALK[: TALK.index("]")],
    "a quote inside": TALK.replace("abc", 'say "x'),
    "two quotes inside": TALK.replace("abc", 'say "x" here'),
    "a comma too many": TALK.replace("]", ",]"),
    "a word before": TALK.replace("1", "None", 1),
}
CASES = [(SOUND, broken) for broken in FLAT.values()]
CASES += [(TALK, broken) for broken in NESTED.values()]
NAMES = [*FLAT, *(f"messages: {name}" for name in NESTED)]


def row(sound: str, number: int) -> dict[str, Any]:
    """Give a sound row with its number, and brackets and quotes in its text."""
    value: dict[str, Any] = json.loads(sound)
    text = f'{number} [x] {{y}} "z", '
    return {**value, **({"output": text} if "output" in value else {"n": text})}


def read(path: Path, content: str) -> list[Record]:
    path.write_text(content, encoding="utf-8")
    return list(read_file(path))


def check(path: Path, texts: list[str], broken: set[int], between: str) -> None:
    """Read an array of rows and check that all are there but the broken, which are rejects."""
    content = "[" + between[1:] + between.join(texts) + between[1:] + "]"
    records = read(path, content)
    found = [record.value for record in records if record.value is not None]
    assert found == [json.loads(text) for n, text in enumerate(texts) if n not in broken]
    rejects = [record for record in records if record.value is None]
    assert len(broken) <= len(rejects) <= 3 * len(broken)
    assert {record.reason for record in rejects} <= {"not_json", "not_an_object"}
    raw = content.encode()
    for record in records:
        assert record.raw and raw[record.offset :].startswith(record.raw)
        assert raw[: record.offset].count(b"\n") + 1 == record.line


@pytest.mark.parametrize("between", [",", ", ", ",\n", "\n,  "], ids=repr)
@pytest.mark.parametrize(("sound", "broken"), CASES, ids=NAMES)
def test_a_broken_row_costs_no_other(
    tmp_path: Path, sound: str, broken: str, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (1, 70, 147):
        texts = [json.dumps(row(sound, n)) for n in range(150)]
        texts[place] = broken
        check(tmp_path / "a.json", texts, {place}, between)
    monkeypatch.setattr(json_array, "WINDOW_BYTES", 11)
    texts = [json.dumps(row(sound, n)) for n in range(9)]
    texts[4] = broken
    check(tmp_path / "a.json", texts, {4}, between)


def test_the_first_and_the_last_row_may_lack_their_brace(tmp_path: Path) -> None:
    for place in (0, 4):
        for between in (",", ",\n"):
            texts = [json.dumps(row(SOUND, n)) for n in range(5)]
            texts[place] = texts[place][:-1]
            check(tmp_path / "a.json", texts, {place}, between)
            content = '{"n": 5, "data": [' + between.join(texts) + "]}"
            records = read(tmp_path / "b.json", content)
            assert [r.reason for r in records if r.reason] == ["not_json"]
            assert len(records) == 5


def test_rows_over_several_lines_and_other_keys(tmp_path: Path) -> None:
    texts = [json.dumps(row(TALK, n), indent=2) for n in range(20)]
    for number, cut in ((5, texts[5][:-2]), (9, texts[9].replace('": "', '": "say "', 1))):
        check(tmp_path / "a.json", [*texts[:number], cut, *texts[number + 1 :]], {number}, ",\n")
    # Without the closing brace another object cannot begin, whatever its first key is.
    other = ['{"a": 1}', '{"b": 2', '{"c": 3}', '{"d": {"e": 4}', '{"f": [{"g": 1}, {"h": 2}]}']
    check(tmp_path / "b.json", other, {1, 3}, ", ")
    objects = read(tmp_path / "c.json", '{\n"a": 1\n}\n{\n"b": 2\n{\n"c": 3\n}\n')
    assert [record.value for record in objects] == [{"a": 1}, None, {"c": 3}]
    # A row whose brackets are right is one, though it holds what begins as rows do.
    tree = '{"id": 1, "k": None, "kids": [{"id": 2}, {"id": 3}]}'
    check(tmp_path / "d.json", ['{"id": 0}', tree, '{"id": 4}'], {1}, ",")


def test_rows_that_are_lists_end_before_the_next(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "U"}, {"from": "gpt", "value": "A"}]
    texts = [json.dumps([*talk, {"from": "human", "value": str(n)}]) for n in range(9)]
    texts[4] = texts[4].replace('"A"', '"say "A"')
    records = read(tmp_path / "a.json", "[" + ", ".join(texts) + "]")
    assert [record.reason for record in records] == [*[""] * 4, "not_json", *[""] * 4]


def test_memory_is_bounded_by_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(json_array, "HEAD_CHARS", 1000)
    monkeypatch.setattr(json_array, "MAX_ROW_BYTES", 3000)
    texts = [json.dumps(row(TALK, n)) for n in range(900)]
    for place, cut in ((100, NESTED["the rest is missing"]), (300, FLAT["a quote is missing"])):
        texts[place] = cut
    most = 0
    more = json_array._Window.more

    def counted(window: json_array._Window) -> bool:
        nonlocal most
        result = more(window)
        most = max(most, len(window.text))
        return result

    monkeypatch.setattr(json_array._Window, "more", counted)
    check(tmp_path / "a.json", texts, {100, 300}, ", ")
    assert most < 10_000


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([",", ",\n"]), st.sampled_from([SOUND, TALK]))
def test_many_broken_rows_cost_at_most_their_neighbours(
    tmp_path_factory: pytest.TempPathFactory, seed: int, between: str, sound: str
) -> None:
    """Any character is lost or added in some rows; all others but their next are read."""
    rng = random.Random(seed)
    texts = [json.dumps(row(sound, n)) for n in range(60)]
    broken = set(rng.sample(range(1, 59), 3))
    for n in broken:
        at = rng.randrange(1, len(texts[n]))
        texts[n] = texts[n][:at] + rng.choice(['"', "{", "}", "[", ",", ""]) + texts[n][at + 1 :]
    path = tmp_path_factory.getbasetemp() / "many.json"
    records = read(path, "[" + between.join(texts) + "]")
    found = [record.value for record in records if record.value is not None]
    lost = [n for n in range(60) if row(sound, n) not in found]
    assert set(lost) <= broken | {n + 1 for n in broken}
