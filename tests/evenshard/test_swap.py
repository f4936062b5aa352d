"""A folder takes its place whole, also where runs are killed, fail, or do it at the same time."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from evenshard.swap import DEAD_AFTER_S, draft_of, recover, swap

OURS = {"data", "extra"}


def own(folder: Path) -> set[str]:
    """A folder is ours if it holds `data`."""
    return OURS if (folder / "data").is_file() else set()


def write(folder: Path, text: str, *others: str) -> Path:
    folder.mkdir()
    for name in ("data", *others):
        (folder / name).write_text(text)
    return folder


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def put(folder: Path, text: str, *others: str) -> None:
    with draft_of(folder, own) as draft:
        for name in ("data", *others):
            (draft / name).write_text(text)
        swap(draft, folder, own)


def wait_for_the_clock(folder: Path) -> None:
    """Go on when the disk's clock has gone on: two renames within one tick look alike."""
    probe = folder / "probe"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.touch()
    probe.unlink()


@pytest.mark.parametrize("name", ["out", "a[1]*", "x.y", ".hidden"])
def test_new_files_replace_ours_and_leave_the_users(tmp_path: Path, name: str) -> None:
    out = tmp_path / "deep" / name
    put(out, "one", "extra")
    (out / "notes").write_text("mine")
    put(out, "two")
    assert contents(out) == {"data": "two", "notes": "mine"}
    assert [path.name for path in out.parent.iterdir()] == [name]


def test_a_failed_draft_leaves_the_older_folder(tmp_path: Path) -> None:
    out = write(tmp_path / "out", "one")
    with pytest.raises(KeyboardInterrupt), draft_of(out, own):
        raise KeyboardInterrupt
    assert contents(out) == {"data": "one"}
    assert os.listdir(tmp_path) == ["out"]


def test_a_failed_rename_is_rolled_back(tmp_path: Path) -> None:
    out = write(tmp_path / "out", "one", "notes")
    with pytest.raises(FileNotFoundError):
        swap(tmp_path / "no draft", out, own)
    assert contents(out) == {"data": "one", "notes": "one"}
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("names", [("0000", "ffff"), ("ffff", "0000")])
def test_the_folder_that_was_set_aside_last_is_put_back(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """The time of the content lies: the stale one was being emptied after the newer was made."""
    stale, newer = (tmp_path / f".out.{name}.old" for name in names)
    out = tmp_path / "out"
    write(tmp_path / "draft", "newer")
    os.rename(write(out, "stale", "extra", "notes"), stale)
    (stale / "extra").unlink()
    assert stale.stat().st_mtime_ns >= (tmp_path / "draft").stat().st_mtime_ns
    os.rename(tmp_path / "draft", out)
    wait_for_the_clock(tmp_path)
    os.rename(out, newer)
    recover(out, own)
    # The user's file of the stale one, whose move was cut off, moves along at last.
    assert contents(out) == {"data": "newer", "notes": "stale"}
    assert os.listdir(tmp_path) == ["out"]


def test_what_nobody_can_name_is_not_removed(tmp_path: Path) -> None:
    out = write(tmp_path / "out", "one")
    (tmp_path / ".out.0123.old").mkdir()
    (tmp_path / ".out.0123.old" / "half").write_text("?")
    recover(out, own)
    assert contents(tmp_path / ".out.0123.old") == {"half": "?"}
    assert contents(out) == {"data": "one"}


def test_drafts_of_killed_runs_are_removed_after_a_day(tmp_path: Path) -> None:
    drafts = {name: write(tmp_path / f".out.{name * 32}", name) for name in "abc"}
    foreign = [write(tmp_path / f".other.{'d' * 32}", "d"), write(tmp_path / ".out.cafe", "e")]
    now = drafts["a"].stat().st_mtime
    for draft in (drafts["a"], drafts["b"], *foreign):
        times = (now - DEAD_AFTER_S - 60,) * 2
        os.utime(draft / "data", times)
        os.utime(draft, times)
    os.utime(drafts["b"] / "data")  # a large file that is still being written
    put(tmp_path / "out", "new")
    left = sorted(path.name for path in tmp_path.iterdir())
    kept = [drafts["b"], drafts["c"], *foreign, tmp_path / "out"]
    assert left == sorted(path.name for path in kept)


def test_two_runs_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(out, "first")
    (out / "notes").write_text("mine")
    faults: list[BaseException] = []

    def run(text: str) -> None:
        try:
            for _ in range(40):
                put(out, text, "extra")
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(text,)) for text in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    put(out, "last")
    assert contents(out) == {"data": "last", "notes": "mine"}
    assert os.listdir(tmp_path) == ["out"]


def test_a_folder_that_comes_in_between_is_set_aside_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write(tmp_path / "out", "one", "notes")
    draft = write(tmp_path / "draft", "three")
    rename, seen = os.rename, []

    def between(source: Path, target: Path) -> None:
        if source == draft and not seen:
            seen.append(write(out, "two", "more"))
        rename(source, target)

    monkeypatch.setattr("evenshard.swap.os.rename", between)
    swap(draft, out, own)
    assert contents(out) == {"data": "three", "notes": "one", "more": "two"}
    assert os.listdir(tmp_path) == ["out"]
    shutil.rmtree(out)
