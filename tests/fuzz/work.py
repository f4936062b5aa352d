"""One process of the fuzzer: it reads files until its time is up, and keeps what went wrong.

The file that is being read lies in its folder, so that one which ends the process is still there.
"""

import hashlib
import json
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stages.rows.dialects import DIALECTS
from stages.rows.formats import delimited, json_array, jsonl
from tests.fuzz.mutations import TEXTS, Seed, mutated, seeds
from tests.fuzz.oracle import PACK, check, check_packed

BYTES_OF_MEMORY = 6 << 30
SLOW_S, SLOW_S_PER_MIB = 2.0, 10.0
KEPT_OF_A_KIND = 3


class Tally:
    """Counts of a process, written where the parent reads them."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts: Counter[str] = Counter()

    def add(self, word: str) -> None:
        """Count a word, and write the counts now and then."""
        self.counts[word] += 1
        if self.counts.total() % 50 == 0:
            self.write()

    def write(self) -> None:
        """Write the counts."""
        temporary = self.file.with_suffix(".new")
        temporary.write_text(json.dumps(self.counts))
        temporary.replace(self.file)


@contextmanager
def bounds(window: int, row: int) -> Iterator[None]:
    """Read through a small window, and call rows long that are not, so that short files do."""
    before = json_array.WINDOW_BYTES, jsonl.MAX_ROW_BYTES
    try:
        json_array.WINDOW_BYTES = window
        jsonl.MAX_ROW_BYTES = json_array.MAX_ROW_BYTES = delimited.MAX_ROW_BYTES = row
        yield
    finally:
        json_array.WINDOW_BYTES, row = before
        jsonl.MAX_ROW_BYTES = json_array.MAX_ROW_BYTES = delimited.MAX_ROW_BYTES = row


def one(rng: random.Random, seed: Seed, folder: Path) -> str:
    """Read one file in one of the ways; give what came of it."""
    name, content = seed
    path = folder / name
    dialect = "auto" if rng.random() < 0.8 else rng.choice(sorted(DIALECTS))
    pack = rng.choice(sorted(PACK)) if name.endswith(TEXTS) and rng.random() < 0.15 else ""
    if pack and rng.random() < 0.5:
        check_packed(path, content, pack)
    if pack:
        packed = bytearray(PACK[pack](content))
        for _ in range(rng.choice((0, 1, 3))):
            packed[rng.randrange(len(packed))] = rng.randrange(256)
        path = path.with_name(name + pack)
        content = bytes(packed[: rng.randrange(len(packed))] if rng.random() < 0.5 else packed)
    path.write_bytes(content)
    if not pack and name.endswith(TEXTS) and rng.random() < 0.2:
        with bounds(rng.choice((7, 64, 1000)), rng.choice((200, 3000, 64 << 20))):
            check(path, dialect)
    outcome = check(path, dialect)
    return f"{path.suffix if not pack else pack} {outcome}"


def keep(folder: Path, place: Path, what: str) -> None:
    """Keep the files that lie in a folder as a failure; of one kind a few are enough."""
    place = place / str(len(list(place.iterdir())) if place.exists() else 0)
    if int(place.name) >= KEPT_OF_A_KIND:
        return
    place.mkdir(parents=True)
    for file in folder.iterdir():
        file.replace(place / file.name)
    (place / "why.txt").write_text(what, encoding="utf-8", errors="backslashreplace")


def _where(error: BaseException) -> str:
    """Name a failure by its type and the last lines of ours, so that one kind is kept once."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{frame.name}:{frame.lineno}" for frame in frames if "/tests/" not in frame.filename]
    return f"{type(error).__name__} {' '.join(ours[-4:]) or frames[-1].name}"


def loop(seed: int, seconds: float, folder: Path, failures: Path, real: tuple[Path, ...]) -> None:
    """Try files until the time is up."""
    resource.setrlimit(resource.RLIMIT_AS, (BYTES_OF_MEMORY, BYTES_OF_MEMORY))
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    known = seeds(folder, real)
    tally = Tally(folder.with_suffix(".json"))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for file in folder.iterdir():
            file.unlink()
        item = mutated(rng, known)
        start = time.monotonic()
        try:
            tally.add(one(rng, item, folder))
        except Exception as error:
            tally.add("FAULT")
            text = "".join(traceback.format_exception(error))
            keep(folder, failures / label(error), text)
        took = time.monotonic() - start
        if took > SLOW_S + SLOW_S_PER_MIB * len(item[1]) / (1 << 20):
            tally.add("SLOW")
            (folder / item[0]).write_bytes(item[1])
            keep(folder, failures / "slow", f"{took:.1f} s for {len(item[1])} bytes")
    tally.write()


def label(error: BaseException) -> str:
    return hashlib.sha256(_where(error).encode()).hexdigest()[:8] + "-" + type(error).__name__


if __name__ == "__main__":
    _, number, time_s, place, kept, *others = sys.argv
    loop(int(number), float(time_s), Path(place), Path(kept), tuple(map(Path, others)))
