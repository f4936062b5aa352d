"""`python -m tests.fuzz --seconds 600`: try changed files on the readers, and keep what fails.

The files are read in a process of their own: one that ends it, or does not come to an end, is a
failure like others. Exit status 1 if there is any.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.conftest import ROOT, SHARED
from tests.fuzz.work import keep

NO_PROGRESS_S = 60.0


def main() -> int:
    """Run processes one after the other until the time is up; print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=Path, default=ROOT / "build" / "fuzz")
    given = parser.parse_args()
    given.failures.mkdir(parents=True, exist_ok=True)
    real = tuple(p for p in (SHARED / "data" / "formats", SHARED / "cases") if p.exists())
    counts: Counter[str] = Counter()
    end = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory() as scratch:
        round_ = 0
        while (left := end - time.monotonic()) > 0:
            folder = Path(scratch) / str(round_)
            status = _watched(given.seed * 1000 + round_, left, folder, given.failures, real)
            file = folder.with_suffix(".json")
            counts += Counter(json.loads(file.read_text())) if file.exists() else Counter()
            if status:
                counts["FAULT"] += 1
                keep(folder, given.failures / "process", f"the process ended: {status}")
            round_ += 1
    for word, count in sorted(counts.items()):
        print(f"{count:>9}  {word}")
    faults = counts["FAULT"] + counts["SLOW"]
    print(f"{counts.total()} inputs in {given.seconds:g} s, {faults} failed", end="")
    print(f"; they are in {given.failures}" if faults else "")
    return int(bool(faults))


def _watched(
    seed: int, seconds: float, folder: Path, failures: Path, real: tuple[Path, ...]
) -> str:
    """Run one process; say how it ended, or "" if it used its time."""
    arguments = [str(seed), str(seconds), str(folder), str(failures), *map(str, real)]
    child = subprocess.Popen([sys.executable, "-m", "tests.fuzz.work", *arguments], cwd=ROOT)
    last, since = -1.0, time.monotonic()
    while child.poll() is None:
        time.sleep(0.2)
        file = folder.with_suffix(".json")
        changed = file.stat().st_mtime if file.exists() else 0.0
        if changed != last:
            last, since = changed, time.monotonic()
        elif time.monotonic() - since > NO_PROGRESS_S:
            child.kill()
            child.wait()
            return f"no progress in {NO_PROGRESS_S:g} s"
    return "" if child.returncode == 0 else f"exit status {child.returncode}"


if __name__ == "__main__":
    sys.exit(main())
