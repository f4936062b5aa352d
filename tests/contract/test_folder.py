"""A store on a URL: the same bytes as on a disk, finished by a manifest, resumed by records."""

import re
import shutil
import uuid
from pathlib import Path

import pytest

from stages.contract import folder
from stages.contract.artifact import MANIFEST, Artifact
from stages.contract.errors import ConfigurationError, DataError, DraftGone
from stages.contract.folder import RemotePath, copy_to_disk, hash_cache_of, sha256_of, store_path
from tests.artifacts import bytes_of
from tests.contract.test_draft import PARTS, commit, full, write


@pytest.fixture
def store() -> RemotePath:
    """A file system in this process's memory, reached as any other."""
    made = store_path(f"fsspec+memory://{uuid.uuid4().hex}")
    assert isinstance(made, RemotePath)
    return made


def held(place: RemotePath) -> dict[str, bytes]:
    return {path.name: path.open().read() for path in place.iterdir()}


def test_a_store_on_a_url_holds_the_same_bytes_as_one_on_a_disk(
    store: RemotePath, tmp_path: Path
) -> None:
    here, there = commit(full(tmp_path)), commit(full(store))  # type: ignore[arg-type]
    assert held(there.path) == bytes_of(here.path)  # type: ignore[arg-type]
    assert there.array("row_id").tolist() == here.array("row_id").tolist()
    assert there.read(["x"], start=3, stop=9).equals(here.read(["x"], start=3, stop=9))
    assert there.schema().equals(here.schema())
    assert [side["n"].to_pylist() for side in there.sides("side-")] == [[0], [1], [2]]
    assert Artifact.open(there.path).manifest == here.manifest


def test_a_part_there_counts_only_if_record_and_bytes_agree(store: RemotePath) -> None:
    draft = full(store)  # type: ignore[arg-type]
    assert all(draft.finished(spec) for spec in PARTS)
    (draft.path / PARTS[1].name).write(b"altered")
    assert [draft.finished(spec) is None for spec in PARTS] == [False, True, False]
    (draft.path / f"{PARTS[2].name}.json").unlink()
    assert draft.finished(PARTS[2]) is None
    for spec in PARTS[1:]:
        write(draft, spec)
    assert commit(draft).num_rows == 10


def test_without_a_manifest_nothing_is_finished_and_with_one_the_draft_is_gone(
    store: RemotePath,
) -> None:
    draft = full(store)  # type: ignore[arg-type]
    assert not (store / "stage" / "k1" / MANIFEST).exists()
    artifact = commit(draft)
    assert MANIFEST in held(artifact.path)  # type: ignore[arg-type]
    with pytest.raises(DraftGone):
        write(draft, PARTS[0])
    with pytest.raises(DraftGone):
        commit(draft)


def test_a_small_file_of_a_finished_result_is_fetched_once(
    store: RemotePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = commit(full(store))  # type: ignore[arg-type]
    fetched: list[str] = []
    whole = RemotePath.open

    def counted(self: RemotePath) -> object:
        fetched.append(self.name)
        return whole(self)

    monkeypatch.setattr(RemotePath, "open", counted)
    for _ in range(3):
        assert artifact.array("row_id").tolist() == list(range(10))
    assert fetched == [spec.name for spec in PARTS]
    monkeypatch.setattr(folder, "MOST_HELD", 0)
    artifact.array("row_id")
    assert len(fetched) == 2 * len(PARTS)


def test_a_torn_part_or_manifest_of_a_finished_result_is_refused(store: RemotePath) -> None:
    artifact = commit(full(store))  # type: ignore[arg-type]
    whole = (artifact.path / PARTS[0].name).open().read()
    (artifact.path / PARTS[0].name).write(whole[:-1])
    with pytest.raises(DataError, match="its manifest says"):
        Artifact.open(artifact.path)
    (artifact.path / PARTS[0].name).write(whole)
    text = (artifact.path / MANIFEST).read_text()
    (artifact.path / MANIFEST).write(text.replace('"fact": 1', '"fact": 2').encode())
    with pytest.raises(DataError, match="was altered"):
        Artifact.open(artifact.path)


def test_places_are_named_as_paths_are(store: RemotePath, tmp_path: Path) -> None:
    place = RemotePath("s3://bucket/store?region=eu-west-1") / "rows" / "k"
    assert str(place) == "s3://bucket/store/rows/k?region=eu-west-1"
    assert (place.name, place.parent.name, str(place.parent.parent)) == (
        "k",
        "rows",
        "s3://bucket/store?region=eu-west-1",
    )
    assert place.with_name("j").name == "j"
    assert store_path("data/store") == Path("data/store")
    assert hash_cache_of("s3://bucket", "data/models") == Path("data/models/hashes")
    assert hash_cache_of("data/store", "data/models") == Path("data/store/hashes")
    file = store / "a" / "b"
    file.write(b"abc")
    copy_to_disk(file, tmp_path / "b")
    copy_to_disk(tmp_path / "b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"abc"
    assert sha256_of(file).startswith("ba7816bf")
    assert [path.name for path in (store / "nobody").iterdir()] == []
    with pytest.raises(FileNotFoundError):
        (store / "nobody").stat()
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("url", ["nowhere://x", "fsspec+nobody://x"])
def test_a_url_that_nobody_knows_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"store={url} cannot be reached")):
        store_path(url)
