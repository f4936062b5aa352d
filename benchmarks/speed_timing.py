"""How the benchmarks of speed take their figures: interleaved turns, and memory beyond a start.

Time is CPU time, over all threads of the process: on an idle machine it is that of the clock for
work with one thread, and on a busy one it hardly moves, which the clock does.
"""

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

Way = Callable[[], object]


def interleaved(ways: Mapping[str, Way], rounds: int) -> dict[str, list[float]]:
    """Time several ways in turn, round after round, so that other work of the machine meets all.

    Returns
    -------
    dict of str to list of float
        CPU seconds of each round, by way.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            gc.collect()
            started = time.process_time()
            way()
            seconds[name].append(time.process_time() - started)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], own: str, other: str) -> float:
    """Give the median over rounds of one way's time over another's in the same round."""
    return float(np.median(np.array(seconds[own]) / np.array(seconds[other])))


def growth(way: Way) -> int:
    """Measure the most memory that a call holds beyond what the process held before, in bytes.

    The kernel's high-water mark of the resident set is set back first, and free blocks of the
    allocator are given back, so that calls do not hide behind each other. Linux only.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    way()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """Read a field of the resident set, such as VmRSS or VmHWM, in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise ValueError(f"/proc/self/status has no field {field}")


@contextlib.contextmanager
def watch_high_water() -> Iterator[Callable[[], int]]:
    """Watch the resident set: what is given says the most of it, in bytes, since the start."""
    Path("/proc/self/clear_refs").write_text("5")
    most: list[int] = []
    yield lambda: most[0] if most else resident("VmHWM")
    most.append(resident("VmHWM"))
