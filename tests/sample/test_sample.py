import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import FunctionType

import pytest

HERE = Path(__file__).resolve().parent
SAMPLE = HERE.parents[1] / "data" / "sample" / "sample.jsonl"

COUNTS = {
    "math/word_problems": 110,
    "code/python_functions": 70,
    "general/questions": 50,
    "convert/units": 35,
    "extract/json": 25,
    "rewrite/style": 20,
    "lang/phrases": 10,
}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return [json.loads(line) for line in SAMPLE.read_bytes().decode().splitlines()]


def outputs(rows: list[dict[str, str]], source: str) -> list[str]:
    return [row["output"] for row in rows if row["source"] == source]


def test_regenerating_gives_the_committed_bytes(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    subprocess.run([sys.executable, str(HERE / "make_sample.py"), str(out)], check=True)
    assert out.read_bytes() == SAMPLE.read_bytes()


def test_rows_and_sources(rows: list[dict[str, str]]) -> None:
    assert len(rows) == 320
    assert Counter(row["source"] for row in rows) == COUNTS


def test_every_row_is_complete_and_short(rows: list[dict[str, str]]) -> None:
    lengths = []
    for row in rows:
        assert list(row) == ["instruction", "input", "output", "source"]
        assert all(isinstance(value, str) for value in row.values())
        assert row["instruction"].strip()
        assert row["output"].strip()
        lengths.append(len(row["instruction"] + row["input"] + row["output"]))
    assert max(lengths) <= 1000
    assert 4 * 55 <= sum(lengths) / len(lengths) <= 4 * 75
    assert not all(json.dumps(row, ensure_ascii=False).isascii() for row in rows)


def test_copies(rows: list[dict[str, str]]) -> None:
    exact = {tuple(row.values()) for row in rows}
    assert len(rows) - len(exact) == 12
    near = {" ".join(" ".join(values).lower().split()) for values in exact}
    assert len(exact) - len(near) == 8


def test_code_answers_define_a_function(rows: list[dict[str, str]]) -> None:
    for code in outputs(rows, "code/python_functions"):
        scope: dict[str, object] = {}
        exec(code, scope)
        scope.pop("__builtins__")
        assert [type(value) for value in scope.values()] == [FunctionType]


def test_extracted_json_is_valid(rows: list[dict[str, str]]) -> None:
    for answer in outputs(rows, "extract/json"):
        assert isinstance(json.loads(answer), dict)


def test_sums_are_right(rows: list[dict[str, str]]) -> None:
    number = r"€?-?\d+(?:\.\d+)?"
    written = re.compile(rf"({number}(?: [-+−×÷] {number})+) ([=≈]) ({number})")  # noqa: RUF001
    to_python = str.maketrans("−×÷", "-*/", "€")  # noqa: RUF001
    for source in ("math/word_problems", "convert/units"):
        for answer in outputs(rows, source):
            found = written.findall(answer)
            assert len(found) == answer.count(" = ") + answer.count(" ≈ ") > 0
            for left, sign, right in found:
                tolerance = 1e-9 if sign == "=" else 0.005
                value = eval(left.translate(to_python))
                assert value == pytest.approx(float(right.strip("€")), rel=0, abs=tolerance)
