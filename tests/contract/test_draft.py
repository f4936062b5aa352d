"""A folder while it is written: which parts count, what a resume makes again, what commits."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.contract.artifact import MANIFEST, Artifact
from stages.contract.draft import Draft
from stages.contract.errors import DataError
from stages.contract.parts import Outcome, PartSpec, Receipt, cut, total
from stages.contract.stage import work_through
from stages.contract.tables import Layout
from tests.artifacts import bytes_of, here

PARTS = cut(10, 4)  # rows 0-3, 4-7, 8-9


def table_of(row_ids: Sequence[int]) -> pa.Table:
    names = pa.array([f"x{i}" for i in row_ids], pa.string())
    return pa.table({"row_id": pa.array(row_ids, pa.int64()), "x": names})


def write(draft: Draft, spec: PartSpec, row_ids: Sequence[int] | None = None) -> Receipt:
    ids = range(spec.start, spec.stop) if row_ids is None else row_ids
    side = {f"side-{spec.index}.parquet": pa.table({"n": [spec.index]})}
    stats = {"seen": spec.stop - spec.start}
    return draft.write_part(spec, table_of(ids), layout=Layout(), sides=side, tokens=7, stats=stats)


def full(store: Path, key: str = "k1") -> Draft:
    draft = Draft.create(store, "stage", key)
    for spec in PARTS:
        write(draft, spec)
    return draft


def commit(
    draft: Draft,
    parts: tuple[PartSpec, ...] = PARTS,
    *,
    parent: Artifact | None = None,
    keeps_order: bool = True,
    sides: tuple[str, ...] = (),
) -> Artifact:
    return draft.commit(
        Outcome(parts, {"fact": 1}, sides),
        params={"p": 1},
        inputs={},
        version=2,
        parent=parent,
        keeps_order=keeps_order,
    )


def committed(store: Path, ids_by_part: Sequence[Sequence[int]], key: str, **options: Any) -> Any:
    draft = Draft.create(store, "stage", key)
    for spec, ids in zip(PARTS, ids_by_part, strict=True):
        write(draft, spec, ids)
    return commit(draft, **options)


def test_parts_are_fixed_ranges_by_hand() -> None:
    assert [(p.index, p.start, p.stop, p.name) for p in PARTS] == [
        (0, 0, 4, "part-00000.parquet"),
        (1, 4, 8, "part-00001.parquet"),
        (2, 8, 10, "part-00002.parquet"),
    ]
    assert cut(0, 4) == ()


def test_a_finished_part_gives_back_its_receipt(tmp_path: Path) -> None:
    draft = full(tmp_path)
    assert draft.finished(PARTS[2]) == Receipt(2, 2, 7, reused=True, stats={"seen": 2})
    assert total([draft.finished(spec) for spec in PARTS], "seen") == 10  # type: ignore[misc]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def change_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def cut_short(path: Path) -> None:
    path.write_text(path.read_text()[:-3])


def remove(path: Path) -> None:
    path.unlink()


def rewrite(**changes: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, **changes}))

    return change


def bring_the_neighbour(path: Path) -> None:
    shutil.copy(path.with_name("part-00000.parquet"), path)


def bring_the_neighbour_and_its_record(path: Path) -> None:
    bring_the_neighbour(path)
    shutil.copy(path.with_name("part-00000.parquet.json"), path.with_name(f"{path.name}.json"))


PART, RECORD, SIDE = "part-00001.parquet", "part-00001.parquet.json", "side-1.parquet"
DAMAGES = {
    "file truncated": (PART, truncate),
    "a byte changed": (PART, change_a_byte),
    "file gone": (PART, remove),
    "record gone": (RECORD, remove),
    "record cut short": (RECORD, cut_short),
    "record empty": (RECORD, lambda path: path.write_bytes(b"")),
    "record of another key": (RECORD, rewrite(key="other")),
    "record of another range": (RECORD, rewrite(stop=9)),
    "record of another index": (RECORD, rewrite(index=0)),
    "side truncated": (SIDE, truncate),
    "side gone": (SIDE, remove),
    "another part's file": (PART, bring_the_neighbour),
    "another part's file and record": (PART, bring_the_neighbour_and_its_record),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_part_is_made_again_and_the_others_are_not(tmp_path: Path, damage: str) -> None:
    expected = bytes_of(commit(full(tmp_path / "clean")).path)
    draft = full(tmp_path / "store")
    name, harm = DAMAGES[damage]
    harm(draft.path / name)
    assert draft.finished(PARTS[1]) is None
    made: list[int] = []

    def make() -> Callable[[PartSpec], Receipt]:
        def work(spec: PartSpec) -> Receipt:
            made.append(spec.index)
            return write(draft, spec)

        return work

    receipts = list(work_through(draft, PARTS, make, here))
    assert made == [1]
    assert {r.index: r.reused for r in receipts} == {0: True, 1: False, 2: True}
    assert bytes_of(commit(draft).path) == expected


def test_a_whole_draft_starts_no_worker_and_gives_receipts_in_order(tmp_path: Path) -> None:
    draft = full(tmp_path)

    def nobody(make: Any, parts: Any, *, uses_gpu: bool) -> Iterator[Receipt]:
        raise AssertionError("nothing is missing")

    steps = work_through(draft, PARTS, lambda: lambda spec: Receipt(0, 0), nobody)
    assert [next(steps).index for _ in PARTS] == [0, 1, 2]
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert [receipt.index for receipt in end.value.value] == [0, 1, 2]


def test_receipts_come_back_in_order_of_the_parts_however_they_are_worked(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path, "stage", "k")

    def backwards(make: Any, parts: Any, *, uses_gpu: bool) -> Iterator[Receipt]:
        yield from map(make(), reversed(parts))

    steps = work_through(draft, PARTS, lambda: lambda spec: write(draft, spec), backwards)
    assert [next(steps).index for _ in PARTS] == [2, 1, 0]
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert [receipt.index for receipt in end.value.value] == [0, 1, 2]


def test_a_committed_folder_holds_parts_sides_and_manifest_and_no_strangers(tmp_path: Path) -> None:
    draft = full(tmp_path)
    draft.write_side("extra.parquet", pa.table({"n": [1, 2]}))
    for name in ("notes.txt", ".part-00001.parquet.0f0f", "scratch.parquet"):
        (draft.path / name).write_text("left by a killed run")
    artifact = commit(draft, sides=("extra.parquet",))
    sides = [f"side-{i}.parquet" for i in range(3)]
    assert set(bytes_of(artifact.path)) == {
        MANIFEST,
        "extra.parquet",
        *sides,
        *(spec.name for spec in PARTS),
    }
    assert artifact.path == tmp_path / "stage" / "k1"
    assert not draft.path.exists()
    manifest = artifact.manifest
    assert (manifest["stage"], manifest["key"], manifest["version"]) == ("stage", "k1", 2)
    assert (manifest["params"], manifest["facts"]) == ({"p": 1}, {"fact": 1})
    assert artifact.num_rows == 10
    assert artifact.parts == PARTS
    assert [table["n"].to_pylist() for table in artifact.sides("side-")] == [[0], [1], [2]]


def test_what_is_written_names_neither_host_nor_path_nor_time(tmp_path: Path) -> None:
    one, two = commit(full(tmp_path / "one")), commit(full(tmp_path / "deeper" / "two"))
    assert bytes_of(one.path) == bytes_of(two.path)


def test_a_part_that_was_never_written_is_named(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path, "stage", "k")
    for spec in PARTS[:2]:
        write(draft, spec)
    with pytest.raises(DataError, match=r"part-00002\.parquet was not written or has no record"):
        commit(draft)
    assert not (tmp_path / "stage" / "k").exists()


def test_a_part_whose_file_is_gone_is_named(tmp_path: Path) -> None:
    draft = full(tmp_path)
    (draft.path / PART).unlink()
    with pytest.raises(DataError, match=r"part-00001\.parquet"):
        commit(draft)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 1, 2, 3], [4, 5, 5, 7], [8, 9]], "none may come twice"),
        ([[0, 1, 2, 3], [3, 5, 6, 7], [8, 9]], "none may come twice"),
        ([[0, 2, 1, 3], [4, 5, 6, 7], [8, 9]], "must increase"),
        ([[0, 1, 2, 3], [4, 5, 7], [8, 9]], r"must be 0\.\.8"),
        ([[1, 2, 3], [4, 5, 6, 7], [8, 9]], r"must be 0\.\.8"),
    ],
)
def test_rows_that_are_not_dense_are_refused(
    tmp_path: Path, ids: list[list[int]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        committed(tmp_path, ids, "k")


def test_later_ids_may_have_gaps_but_must_come_from_the_parent(tmp_path: Path) -> None:
    parent = committed(tmp_path, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], "rows")
    child = committed(tmp_path, [[1, 3], [], [9]], "child", parent=parent)
    assert child.array("row_id").tolist() == [1, 3, 9]
    with pytest.raises(DataError, match="a row id is not among those of"):
        committed(tmp_path, [[1, 3], [4], [9]], "grandchild", parent=child)
    with pytest.raises(DataError, match="none may come twice"):
        committed(tmp_path, [[1, 1], [], [9]], "twice", parent=child)


def test_parts_of_unlike_schemas_are_refused(tmp_path: Path) -> None:
    draft = Draft.create(tmp_path, "rows", "k")
    first, second = cut(4, 2)
    draft.write_part(first, table_of([0, 1]), layout=Layout())
    other = pa.table({"row_id": pa.array([2, 3], pa.int64()), "x": pa.array([2, 3], pa.int32())})
    draft.write_part(second, other, layout=Layout())
    with pytest.raises(DataError, match=r"part-00001\.parquet has another schema"):
        draft.commit(
            Outcome((first, second), {}),
            params={},
            inputs={},
            version=1,
            parent=None,
            keeps_order=True,
        )


def test_parts_in_another_order_are_checked_as_a_set(tmp_path: Path) -> None:
    parent = committed(tmp_path, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], "rows")
    child = committed(tmp_path, [[9, 1], [4, 0], [2]], "child", parent=parent, keeps_order=False)
    assert child.array("row_id").tolist() == [9, 1, 4, 0, 2]
    with pytest.raises(DataError, match="none may come twice"):
        committed(tmp_path, [[9, 1], [4, 9], [2]], "twice", parent=parent, keeps_order=False)
    with pytest.raises(DataError, match="not among"):
        committed(tmp_path, [[11], [4], [2]], "strange", parent=parent, keeps_order=False)


def test_the_second_writer_keeps_the_first_folder_and_loses_its_draft(tmp_path: Path) -> None:
    second = full(tmp_path)
    shutil.copytree(second.path, tmp_path / "stage" / "other")
    first = dataclasses.replace(second, path=tmp_path / "stage" / "other")
    theirs = commit(first)
    before = {path.name: path.stat().st_ino for path in theirs.path.iterdir()}
    ours = commit(full(tmp_path))
    assert ours.path == theirs.path
    assert {path.name: path.stat().st_ino for path in ours.path.iterdir()} == before
    assert [path.name for path in (tmp_path / "stage").iterdir()] == ["k1"]


def test_a_folder_in_the_way_that_is_no_artifact_is_not_taken_for_one(tmp_path: Path) -> None:
    draft = full(tmp_path)
    (tmp_path / "stage" / "k1").mkdir()
    (tmp_path / "stage" / "k1" / "notes.txt").write_text("mine")
    with pytest.raises(OSError, match="not empty"):
        commit(draft)
    assert (tmp_path / "stage" / "k1" / "notes.txt").read_text() == "mine"


def test_a_draft_of_a_killed_run_is_found_again(tmp_path: Path) -> None:
    draft = full(tmp_path)
    again = Draft.create(tmp_path, "stage", "k1")
    assert again == draft
    assert again.finished(PARTS[0]) is not None


def test_the_record_beside_a_part_is_readable(tmp_path: Path) -> None:
    draft = full(tmp_path)
    record = json.loads((draft.path / RECORD).read_text())
    assert (record["index"], record["start"], record["stop"], record["key"]) == (1, 4, 8, "k1")
    assert record["num_rows"] == pq.read_metadata(draft.path / PART).num_rows == 4
    assert record["num_bytes"] == (draft.path / PART).stat().st_size
    assert [side["name"] for side in record["sides"]] == [SIDE]
