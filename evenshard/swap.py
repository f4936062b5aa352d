"""How a finished folder takes its place: written beside it, swapped in by two renames.

    with draft_of(folder, own) as draft: ...; swap(draft, folder, own)

A reader meets the old folder, the new one, or for an instant none, never a mix. What stands in
between is `.<name>.<hex>`, a draft, and `.<name>.<hex>.old`, the older folder. There is no lock:
two runs may do this to one folder at once, and the last to swap wins. `own` names the files of a
folder that evenshard wrote; others are the user's, and move along.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Own = Callable[[Path], Collection[str]]

DEAD_AFTER_S = 24 * 3600


@contextmanager
def draft_of(folder: Path, own: Own) -> Iterator[Path]:
    """Make a draft beside a folder, which is gone after the block; first mend what was left.

    Parameters
    ----------
    folder : Path
        The final place, resolved: a link to another disk must stay a link.
    own : callable
        Names the files of such a folder that are ours.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    recover(folder, own)
    draft = _beside(folder)
    draft.mkdir()
    try:
        _remove_dead_drafts(draft, folder)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def swap(draft: Path, folder: Path, own: Own) -> None:
    """Put a finished draft in the place of an older folder; where that fails, the older stays."""
    olds: list[Path] = []
    while True:
        with suppress(FileNotFoundError):  # there is none yet
            old = _beside(folder, ".old")
            os.rename(folder, old)
            olds.append(old)
        try:
            os.rename(draft, folder)
            break
        except OSError:
            if not folder.exists():  # else another run put one there meanwhile; it goes aside too
                if olds:
                    os.rename(olds[-1], folder)
                raise
    for old in olds:
        _clear(old, folder, own)


def recover(folder: Path, own: Own) -> None:
    """Finish what `swap` had begun when it was killed: put the older folder back, or clear it."""
    # Listed before looking for the folder: one that is then there took the place of all these.
    olds = sorted(_left(folder, r"[0-9a-f]+\.old"), key=_time_of_rename)
    if olds and not folder.exists():
        newest = olds.pop()
        try:
            os.rename(newest, folder)
        except OSError:
            if not folder.exists():  # else another run has done it
                raise
    for old in olds:
        if own(old):  # what nobody can name is left for the user
            _clear(old, folder, own)


def _clear(old: Path, folder: Path, own: Own) -> None:
    """Move along what is the user's, then remove an older folder; any run may finish this."""
    with suppress(FileNotFoundError):  # another run has done it, or is at the folder and will
        ours = own(old)
        for child in list(old.iterdir()):
            if child.name not in ours and not (folder / child.name).exists():
                os.rename(child, folder / child.name)
        dead = old.with_suffix("")  # no longer one that can be put back: it will be in parts
        os.rename(old, dead)
        shutil.rmtree(dead)


def _remove_dead_drafts(draft: Path, folder: Path) -> None:
    """Remove drafts of killed runs: not written to for a day, by the clock of their own disk.

    A run that slept for so long fails, and has lost nothing that a new run does not make.
    """
    now = draft.stat().st_mtime
    for other in _left(folder, "[0-9a-f]{32}"):
        with suppress(FileNotFoundError):  # its own run has just finished
            written = max(path.stat().st_mtime for path in (other, *other.iterdir()))
            if now - written > DEAD_AFTER_S:
                shutil.rmtree(other, ignore_errors=True)


def _beside(folder: Path, ending: str = "") -> Path:
    return folder.with_name(f".{folder.name}.{uuid.uuid4().hex}{ending}")


def _left(folder: Path, ending: str) -> list[Path]:
    name = re.compile(rf"\.{re.escape(folder.name)}\.{ending}")
    found = [path for path in folder.parent.iterdir() if name.fullmatch(path.name)]
    return [path for path in found if path.is_dir()]


def _time_of_rename(old: Path) -> int:
    """Give when a folder was set aside, by the kernel: the last change of its own entry.

    The time of its content tells nothing: it is later in a stale one that was being emptied.
    """
    try:
        return old.stat().st_ctime_ns
    except FileNotFoundError:  # another run has just cleared it
        return 0
