"""A store that is harmed: the altered is not trusted, the whole is kept, and words say why."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stages.contract import fingerprint
from stages.contract.artifact import MANIFEST, Artifact
from stages.contract.draft import Draft
from stages.contract.errors import DataError, DraftGone
from stages.contract.parts import Outcome, PartSpec, cut
from stages.contract.tables import Layout
from tests.artifacts import bytes_of

PARTS = cut(12, 4)
KEY = "0123456789abcdef"


def table_of(spec: PartSpec, num_bytes: int = 0) -> pa.Table:
    """Rows with bytes that no codec makes smaller."""
    rng = np.random.default_rng(spec.index)
    ids = range(spec.start, spec.stop)
    noise = [rng.bytes(num_bytes) for _ in ids]
    return pa.table({"row_id": pa.array(ids, pa.int64()), "noise": pa.array(noise, pa.binary())})


def commit(draft: Draft) -> Artifact:
    return draft.commit(
        Outcome(PARTS, {"fact": 1}), params={}, inputs={}, version=1, parent=None, keeps_order=True
    )


def finished(store: Path, num_bytes: int = 0) -> Artifact:
    draft = Draft.create(store, "stage", KEY)
    for spec in PARTS:
        draft.write_part(spec, table_of(spec, num_bytes), layout=Layout())
    return commit(draft)


def flip(path: Path) -> None:
    """Change a byte and set the times back, as a tool that copies would."""
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def rewrite(name: str, value: object) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        told = json.loads(path.read_text())
        told[name] = value
        path.write_text(json.dumps(told))

    return change


def unseal(path: Path) -> None:
    told = json.loads(path.read_text())
    del told["seal"]
    path.write_text(json.dumps(told))


def forget_a_part(path: Path) -> None:
    told = json.loads(path.read_text())
    told["parts"].pop()
    path.write_text(json.dumps(told))


PART = "part-00001.parquet"
HARMS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a byte of a part": (PART, flip, "holds other bytes"),
    "a part truncated": (PART, lambda path: os.truncate(path, 9), "has 9 bytes, its manifest says"),
    "a part gone": (PART, Path.unlink, "is missing"),
    "another part": (PART, lambda p: shutil.copy(p.with_name("part-00002.parquet"), p), "other b"),
    "a fact": (MANIFEST, rewrite("facts", {"fact": 2}), "was altered"),
    "the inputs": (MANIFEST, rewrite("inputs", {"rows": KEY}), "was altered"),
    "a part less": (MANIFEST, forget_a_part, "was altered"),
    "no seal": (MANIFEST, unseal, "an older version wrote it"),
    "a torn manifest": (MANIFEST, lambda path: os.truncate(path, 40), "is not JSON"),
    "an empty manifest": (MANIFEST, lambda path: os.truncate(path, 0), "is not JSON"),
    "a list": (MANIFEST, lambda path: path.write_text("[1]") and None, "was altered"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_finished_result_that_was_altered_is_refused_with_what_to_do(
    tmp_path: Path, harm: str
) -> None:
    artifact = finished(tmp_path)
    Artifact.open(artifact.path)
    name, alter, words = HARMS[harm]
    alter(artifact.path / name)
    with pytest.raises(DataError, match=words) as caught:
        Artifact.open(artifact.path)
    assert f"delete the folder {artifact.path} and run again" in str(caught.value)


def test_a_result_copied_under_another_key_is_refused(tmp_path: Path) -> None:
    artifact = finished(tmp_path)
    other = artifact.path.with_name("f" * 16)
    shutil.copytree(artifact.path, other)
    with pytest.raises(DataError, match=f"is that of stage/{KEY}"):
        Artifact.open(other)


def test_a_foreign_part_in_a_finished_folder_is_not_read(tmp_path: Path) -> None:
    artifact = finished(tmp_path)
    shutil.copy(artifact.path / PART, artifact.path / "part-00003.parquet")
    assert Artifact.open(artifact.path).array("row_id").tolist() == list(range(12))


def test_a_file_is_hashed_once_and_again_only_when_it_was_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = finished(tmp_path)
    hashed: list[str] = []
    whole = fingerprint.file_sha256

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return whole(path)

    monkeypatch.setattr(fingerprint, "file_sha256", counted)
    Artifact.open(artifact.path)
    assert hashed == [], "writing has hashed them already"
    os.utime(artifact.path / PART)
    Artifact.open(artifact.path)
    assert hashed == [PART]
    shutil.rmtree(tmp_path / "hashes")
    (tmp_path / "hashes").write_text("in the way: nothing can be remembered")
    Artifact.open(artifact.path)
    assert hashed == [PART, *(spec.name for spec in PARTS)]


def test_a_draft_that_another_run_finished_is_told_from_one_that_is_not_here(
    tmp_path: Path,
) -> None:
    draft = Draft.create(tmp_path, "stage", KEY)
    shutil.rmtree(draft.path)
    with pytest.raises(DataError, match=r"set store=\.\.\. to a folder that all nodes see"):
        draft.write_part(PARTS[0], table_of(PARTS[0]), layout=Layout())
    finished(tmp_path)
    with pytest.raises(DraftGone):
        draft.write_part(PARTS[0], table_of(PARTS[0]), layout=Layout())


def test_a_commit_that_is_overtaken_in_the_middle_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run renames the folder between our first look at it and our reading of records."""
    draft = Draft.create(tmp_path, "stage", KEY)
    for spec in PARTS:
        draft.write_part(spec, table_of(spec), layout=Layout())
    read = Draft._record

    def overtaken(self: Draft, spec: PartSpec) -> object:
        monkeypatch.setattr(Draft, "_record", read)
        commit(draft)
        return read(self, spec)

    monkeypatch.setattr(Draft, "_record", overtaken)
    with pytest.raises(DraftGone, match="another run has finished it"):
        commit(draft)
    assert Artifact.open(tmp_path / "stage" / KEY).num_rows == 12


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", *options], capture_output=True).returncode != 0:
        pytest.skip("the right to mount a small disk is not here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_stops_with_what_to_do_and_keeps_what_was_finished(
    tmp_path: Path, small_disk: Path
) -> None:
    each = 30_000  # 120 kB a part: two fit, three do not
    expected = bytes_of(finished(tmp_path / "large", each).path)
    draft = Draft.create(small_disk, "stage", KEY)
    for spec in PARTS[:2]:
        draft.write_part(spec, table_of(spec, each), layout=Layout())
    with pytest.raises(DataError, match=r"no room \(No space left on device\).*free some room"):
        draft.write_part(PARTS[2], table_of(PARTS[2], each), layout=Layout())
    assert not [file.name for file in draft.path.iterdir() if file.name.startswith(".")]
    assert draft.finished(PARTS[2]) is None

    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    assert [draft.finished(spec) is not None for spec in PARTS] == [True, True, False]
    draft.write_part(PARTS[2], table_of(PARTS[2], each), layout=Layout())
    assert bytes_of(commit(draft).path) == expected
