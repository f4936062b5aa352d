"""Any text may be asked for as a row: it is a row, or one sentence says that there is none."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.config import compose
from pipeline.plan import RunReport, run_plan
from stages.contract.errors import DataError
from stages.report.life import Life
from stages.report.lookup import explain, find
from stages.report.named import file_meant
from tests.artifacts import SEEDED
from tests.report.hostile import FILE, Evil

NUMBERS = ["9" * 18, "9" * 19, "9" * 25, "9" * 5000, str(2**63 - 1), str(2**63)]


@pytest.mark.parametrize("number", NUMBERS, ids=len)
@pytest.mark.parametrize("before", ["", "uid:", f"{FILE}:"], ids=["id", "uid", "line"])
def test_a_number_that_no_row_has_is_no_row(evil: Evil, before: str, number: str) -> None:
    with pytest.raises(DataError, match="is no row of this run"):
        explain(evil.artifacts, evil.manifest, before + number)


@SEEDED
@given(
    before=st.sampled_from(["", "uid:", f"{FILE}:", ":"]),
    text=st.one_of(
        st.text(st.characters(), max_size=9), st.from_regex(r"\d{1,30}", fullmatch=True)
    ),
)
def test_any_text_is_a_row_or_one_sentence(evil: Evil, before: str, text: str) -> None:
    try:
        told = explain(evil.artifacts, evil.manifest, before + text)
    except DataError as error:
        told = str(error)
        assert "\n" not in told
    assert told.encode()


# Names that end in each other, and names that are equal but for their folders.
NESTED = ("a.jsonl", "b/a.jsonl", "b/b/a.jsonl", "c/b/a.jsonl", "d/t.jsonl", "e/t.jsonl", "u.jsonl")
NUM_LINES = 9


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every file has another unreadable line, and another number of lines."""
    root = tmp_path_factory.mktemp("nested") / "set"
    for number, name in enumerate(NESTED):
        lines = [
            json.dumps(
                {"instruction": f"question {i} of {name}", "output": f"answer {i} of {name}"}
            )
            for i in range(NUM_LINES - number % 3)
        ]
        lines[number] = "{" + name
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture(scope="module")
def nested(root: Path, model_folder: Path) -> RunReport:
    overrides = [
        f"rows.path={root}",
        f"store={root.parent / 'store'}",
        f"out={root.parent / 'out'}",
        f"model.path={model_folder}",
        *("name=nested", "compute=local", "report=false", "rows.rows_per_part=7"),
        *("rows.max_reject_fraction=0.5", "allocate.budget=50%", "allocate.num_workers=2"),
    ]
    return run_plan(compose(overrides), overrides)


def found(nested: RunReport, row: str) -> Life:
    artifacts = {name: step.artifact for name, step in nested.steps.items()}
    return find(artifacts, nested.manifest, row)


def test_every_row_is_found_by_its_own_name_in_nested_folders_of_equal_names(
    nested: RunReport, root: Path
) -> None:
    rows = nested.steps["rows"].artifact.read(["row_id", "source_file", "source_line"])
    assert set(rows["source_file"].to_pylist()) == set(NESTED)
    for row in rows.to_pylist():
        place = f"{row['source_file']}:{row['source_line']}"
        for name in (place, f"{root}/{place}"):
            life = found(nested, name)
            assert (life.row_id, life.place) == (row["row_id"], place), name


def test_every_reject_is_found_by_its_own_name_in_nested_folders_of_equal_names(
    nested: RunReport, root: Path
) -> None:
    rejects = pq.read_table(nested.out / "rejects.parquet", columns=["file", "line", "raw"])
    assert sorted(rejects["file"].to_pylist()) == sorted(NESTED)
    for reject in rejects.to_pylist():
        place = f"{reject['file']}:{reject['line']}"
        for name in (place, f"{root}/{place}"):
            life = found(nested, name)
            assert (life.row_id, life.place) == (None, place)
            assert life.prompt == reject["raw"].decode() == "{" + reject["file"]


@pytest.mark.parametrize("line", range(1, NUM_LINES + 2))
def test_a_name_of_several_files_is_refused_and_they_are_named(
    nested: RunReport, line: int
) -> None:
    with pytest.raises(DataError) as raised:
        found(nested, f"t.jsonl:{line}")
    assert str(raised.value) == (
        "t.jsonl must be one file of this run, and 2 go by that name: d/t.jsonl, e/t.jsonl; "
        "write more of the path, such as d/t.jsonl"
    )


def test_no_line_of_another_file_answers_for_one_that_is_not_there(nested: RunReport) -> None:
    """b/b/a.jsonl has seven lines, a.jsonl nine."""
    assert found(nested, "a.jsonl:8").place == "a.jsonl:8"
    for name in ("b/b/a.jsonl:8", "/x/b/b/a.jsonl:8", "v.jsonl:1"):
        with pytest.raises(DataError, match="is no row of this run"):
            found(nested, name)


def test_the_file_that_is_meant_by_hand() -> None:
    names = ["a.jsonl", "x/b/a.jsonl", "y/t.jsonl", "z/t.jsonl"]
    for asked, expected in {
        "a.jsonl": "a.jsonl",
        "b/a.jsonl": "x/b/a.jsonl",  # all of what was asked, and not a part of it
        "/data/x/b/a.jsonl": "x/b/a.jsonl",
        "/data/c/a.jsonl": "a.jsonl",
        "ba.jsonl": None,
        "l": None,
        "z/t.jsonl": "z/t.jsonl",
    }.items():
        assert file_meant(names, asked) == expected, asked
    with pytest.raises(DataError, match=r"y/t\.jsonl, z/t\.jsonl; write more"):
        file_meant(names, "t.jsonl")
    with pytest.raises(DataError, match=r"9 go by that name: .* and 4 more; write more") as raised:
        file_meant([f"{i}\x1b/t" for i in range(9)], "t")
    assert "\x1b" not in str(raised.value)
