"""A short run of the fuzzer, the same files every time; `python -m tests.fuzz` runs a long one."""

import random
from pathlib import Path

import pytest

from stages.rows.formats.record import Record
from tests.fuzz import oracle
from tests.fuzz.mutations import BY_DIALECT, SUFFIXES, mutated, seeds
from tests.fuzz.work import one


@pytest.mark.parametrize("seed", range(3))
def test_changed_files_give_rows_or_rejects(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    known = seeds(tmp_path)
    outcomes = {one(rng, mutated(rng, known), tmp_path).split()[-1] for _ in range(400)}
    assert outcomes == {"read", "DataError"}


def test_every_format_and_dialect_has_seeds(tmp_path: Path) -> None:
    known = seeds(tmp_path)
    assert {"a" + suffix for suffix in SUFFIXES} - {name for name, _ in known} == {"a.ndjson"}
    for name, content in known:
        (tmp_path / name).write_bytes(content)
        assert oracle.check(tmp_path / name) == "read", content[:80]
    assert len(known) > 6 * len(BY_DIALECT)


def test_the_check_sees_a_lost_row(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a": 3}\n')
    records = [Record(1, 0, {"a": 1}, b'{"a": 1}'), Record(3, 18, {"a": 3}, b'{"a": 3}')]
    with pytest.raises(oracle.Fault, match="bytes in no record"):
        oracle._check_places(path, records)
    with pytest.raises(oracle.Fault, match="other bytes than its place"):
        oracle._check_places(path, [Record(1, 1, {"a": 1}, b'{"a": 1}')])
    with pytest.raises(oracle.Fault, match="overlaps"):
        oracle._check_places(path, [records[0], records[0]])
    with pytest.raises(oracle.Fault, match="1 records became 0"):
        oracle._check_outcomes(records[:1], [])
