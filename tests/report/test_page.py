"""The whole page of a hostile run: what it says, that it escapes, its size and its bytes."""

import json
import shlex
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stages.contract.errors import ConfigurationError
from stages.report.gather import POINTS, compare_rows, slots_of
from stages.report.page import command, library, source_hash
from stages.report.reading import iter_groups, shown, turns
from stages.report.write import write_report
from tests.artifacts import rows_table, save
from tests.report.conftest import comparison
from tests.report.hostile import FILE, Evil

OWN_TAGS = set(
    "html head meta title link style body a header h1 h2 h3 h4 p nav ul li main section dl div dt "
    "dd figure figcaption script table caption thead tbody tr th td fieldset legend label input "
    "span details summary br code pre button footer".split()
)


class Tags(HTMLParser):
    """Gathers tags, attributes, scripts and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._script: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._script = dict(attrs) if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
        else:
            self.text += data


@pytest.fixture(scope="module")
def parsed(page: Path) -> Tags:
    parser = Tags()
    parser.feed(page.read_text(encoding="utf-8"))
    return parser


def test_text_of_the_set_makes_no_element_and_no_attribute(parsed: Tags) -> None:
    assert parsed.tags <= OWN_TAGS
    assert not {name for name in parsed.attributes if name.startswith("on")}
    assert "<script>window.__owned=1</script>" in parsed.text
    assert FILE in parsed.text


def test_only_its_own_two_scripts_may_run(page: Path, parsed: Tags) -> None:
    running = [text for attributes, text in parsed.scripts if not attributes.get("type")]
    assert len(running) == 2 and running[0] == library()
    text = page.read_text(encoding="utf-8")
    policy = unescape(text[text.index("script-src") :].split('"', 1)[0])
    assert policy.split()[1:] == [f"'sha256-{source_hash(script)}'" for script in running]
    assert "default-src 'none'" in text


def test_pictures_hold_the_hostile_text_as_data(parsed: Tags) -> None:
    charts = {
        str(attributes["id"]): (json.loads(text), text)
        for attributes, text in parsed.scripts
        if attributes.get("type") == "application/json"
    }
    assert set(charts) == {
        f"chart-{name}" for name in ("funnel", "map", "weights", "strip", "errors", "compare")
    }
    assert not [text for _, text in charts.values() if set("<>&") & set(text)]
    points = charts["chart-map"][0]["data"]["values"]
    assert any("<img src=x onerror=" in point["prompt"] for point in points)
    assert {point["state"] for point in points} == {"kept", "not selected"}
    assert not [p for p in points if "\u202e" in p["prompt"] or "\x1b" in p["prompt"]]


def test_every_section_has_its_figures(evil: Evil, parsed: Tags) -> None:
    text = " ".join(parsed.text.split())
    manifest = evil.manifest
    for words in (
        "evil",
        "Of 64 rows, 30 were kept",
        "budget=50%",
        f"{manifest['schedule']['imbalance']:.3f}",
        "benchmark_leak",
        "no_supervised_tokens",
        "not_json",
        "1 equal to an earlier row",
        "Words that set it apart",
        "python -m pipeline curate",
        manifest["keys"]["embed"],
        manifest["versions"]["numpy"],
        "good<b>",
    ):
        assert words in text, words
    assert text.count("Nearest") == manifest["settings"]["cluster"]["num_clusters"]


def test_the_same_artifacts_give_the_same_bytes(evil: Evil, page: Path, tmp_path: Path) -> None:
    again = write_report(tmp_path, evil.artifacts, evil.manifest, comparison())
    assert again.read_bytes() == page.read_bytes()
    assert [child.name for child in tmp_path.iterdir()] == ["report.html"]


def test_a_full_map_stays_far_under_five_megabytes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    start = text.index('id="chart-map"')
    spec = json.loads(text[text.index("{", start) : text.index("</script>", start)])
    points = spec["data"]["values"]
    largest = max(len(json.dumps(point)) for point in points)
    # Texts are cut, so no point can be much larger: prompts and answers of 140 characters, each
    # of which JSON can write as six.
    assert len(page.read_bytes()) + POINTS * max(largest, 2 * 6 * 150) < 5_000_000


def test_without_a_comparison_and_without_quality_the_page_says_so(
    evil: Evil, tmp_path: Path
) -> None:
    allocate = evil.artifacts["allocate"]
    facts = {k: v for k, v in allocate.facts.items() if k != "quality"}
    blind = type(allocate)(
        allocate.path, allocate.stage, allocate.key, {**allocate.manifest, "facts": facts}
    )
    path = write_report(tmp_path, {**evil.artifacts, "allocate": blind}, evil.manifest, None)
    text = path.read_text(encoding="utf-8")
    assert "not measured" in text and "embed.judge=true" in text
    assert "were not compared" in text
    assert 'id="chart-errors"' not in text and 'id="chart-compare"' not in text


def test_the_command_can_be_pasted_into_a_shell() -> None:
    overrides = ['rows.path="a b.jsonl"', "name=it's"]
    words = shlex.split(command({"overrides": overrides}))
    assert words == ["python", "-m", "pipeline", "curate", *overrides]


def test_a_comparison_is_shown_at_equal_rows_best_first_without_what_was_not_run() -> None:
    rows = compare_rows(comparison())
    assert [(r["budget"], r["method"]) for r in rows] == [
        ("0.5", "good<b>"),
        ("0.5", "random"),
        ("0.5", "bad"),
        ("10%", "good<b>"),
        ("10%", "random"),
        ("10%", "bad"),
    ]
    assert compare_rows(None) == []


def test_the_most_frequent_names_get_colours_and_ties_go_by_name() -> None:
    assert slots_of(["b", "a", "b", "c", "a", "d", "e", "f", "g"]) == {
        "a": 0,
        "b": 1,
        "c": 2,
        "d": 3,
        "e": 4,
        "f": 5,
    }


def test_texts_are_cut_to_one_line() -> None:
    assert shown("a\n  b\tc", 20) == "a b c"
    assert shown("x" * 100, 5) == "xxxxx..."
    assert len(shown("word " * 10_000_000, 50)) == 53


def test_the_turns_that_are_shown() -> None:
    system = {"role": "system", "content": "s"}
    user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    assert turns([system, user, answer, {"role": "user", "content": "2"}]) == ("u", "a")
    assert turns([system, answer]) == ("s", "a")
    assert turns([]) == ("", "")


def test_only_wanted_rows_are_read_and_in_order(tmp_path: Path) -> None:
    rows = save(tmp_path, "rows", rows_table(2500), rows_per_part=1200)
    wanted = np.array([0, 7, 1199, 1200, 2499])
    tables = list(iter_groups(rows, wanted, ["row_id", "uid"]))
    assert pa.concat_tables(tables)["row_id"].to_pylist() == wanted.tolist()
    assert all(table.num_rows < 3 for table in tables)


def test_without_the_package_that_draws_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, evil: Evil, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="vl-convert-python"):
        write_report(tmp_path, evil.artifacts, evil.manifest)
