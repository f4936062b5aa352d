"""`python tests/fuzz/guided.py --seconds 600`: the same checks, led by coverage; needs `atheris`.

atheris is no dependency of the project, and `python -m tests.fuzz` does without it. Every input is
the text of one file, whose first byte chooses the format.
"""

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["stages.rows"]):
    from tests.conftest import ROOT, SHARED
    from tests.fuzz.mutations import TEXTS, mutated, seeds
    from tests.fuzz.oracle import check
    from tests.fuzz.work import keep, label


def main() -> None:
    """Run until the time is up, then say how many inputs were tried, and end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--failures", type=Path, default=ROOT / "build" / "fuzz")
    given = parser.parse_args()
    given.failures.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp())
    (scratch / "file").mkdir()
    (scratch / "corpus").mkdir()
    known = [
        seed
        for seed in seeds(scratch, tuple(p for p in (SHARED / "cases",) if p.exists()))
        if seed[0].endswith(TEXTS)
    ]
    for number, (name, content) in enumerate(known):
        byte = bytes([TEXTS.index(Path(name).suffix)])
        (scratch / "corpus" / str(number)).write_bytes(byte + content[:4096])
    end = time.monotonic() + given.seconds
    counts = {"inputs": 0, "failed": 0}

    def one(data: bytes) -> None:
        if time.monotonic() > end:
            print(f"{counts['inputs']} inputs in {given.seconds:g} s, {counts['failed']} failed")
            sys.stdout.flush()
            os._exit(int(bool(counts["failed"])))
        counts["inputs"] += 1
        for file in (scratch / "file").iterdir():
            file.unlink()
        suffix = TEXTS[data[0] % len(TEXTS)] if data else ".jsonl"
        path = scratch / "file" / f"a{suffix}"
        path.write_bytes(data[1:])
        try:
            check(path)
        except Exception as error:
            counts["failed"] += 1
            text = "".join(traceback.format_exception(error))
            keep(scratch / "file", given.failures / label(error), text)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        """Let half of the changes be ours, which know the formats."""
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        _, content = mutated(rng, [("a", data[1:]), *rng.sample(known, 1)])
        return data[:1] + content[: max_size - 1]

    arguments = [sys.argv[0], str(scratch / "corpus"), "-max_len=16384", "-print_final_stats=0"]
    atheris.Setup([*arguments, "-verbosity=0"], one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
