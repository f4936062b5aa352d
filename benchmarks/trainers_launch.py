"""Starts programs on two ranks, with a time limit, and gives what they recorded.

Ranks are forked from a server that has imported the libraries, since that takes longest.
"""

import importlib.util
import multiprocessing
import pickle
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.trainers_record import Rows, run_rank, run_ray

WORLD_SIZE = 2
TIMEOUT_S = 120.0
GRACE_S = 5.0  # for the other ranks, once one has failed
PRELOADED = (
    "__main__",
    "transformers.models.llama.modeling_llama",
    "accelerate",
    "datasets",
    "benchmarks.trainers_record",
)


class NotRun(Exception):
    """Why a program gave nothing."""


@dataclass(frozen=True)
class Record:
    """What two ranks did: rows by rank and step, and gradients by step."""

    steps: list[list[Rows]]
    gradients: list[Any]

    @classmethod
    def read(cls, folder: Path) -> "Record":
        """Read what the ranks wrote."""
        paths = [folder / f"rank{rank}.pkl" for rank in range(WORLD_SIZE)]
        if not all(path.is_file() for path in paths):
            raise NotRun(f"no record of all ranks in {folder}")
        ranks = [pickle.loads(path.read_bytes()) for path in paths]
        return cls([steps for steps, _ in ranks], ranks[0][1])


def build_deepspeed() -> None:
    """Compile what DeepSpeed compiles at its first start, if it is installed, without a time limit.

    A rank that is killed meanwhile leaves a lock in TORCH_EXTENSIONS_DIR, by default in the home
    folder, for which every later start waits for ever.
    """
    if importlib.util.find_spec("deepspeed") is None:
        return
    code = "from deepspeed.comm.torch import build_shm_op; build_shm_op()"
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)


def launch(program: Path, words: Sequence[str], out: Path) -> Record:
    """Run a program on two ranks.

    Raises
    ------
    NotRun
        If a rank fails or does not end in time; the last line of its log says why.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    port = _free_port()
    processes = [
        _start(run_rank, rank, WORLD_SIZE, port, str(program), list(words), out)
        for rank in range(WORLD_SIZE)
    ]
    _wait(processes, TIMEOUT_S, [out / f"rank{rank}.log" for rank in range(WORLD_SIZE)])
    return Record.read(out)


def launch_ray(program: Path, cases: Sequence[tuple[Sequence[str], Path]], log: Path) -> None:
    """Run a program of Ray Train with several command lines; `Record.read` reads each."""
    for _, out in cases:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
    process = _start(run_ray, str(program), [(list(words), out) for words, out in cases], log)
    _wait([process], TIMEOUT_S + 40 * len(cases), [log])


def _start(function: Callable[..., None], *args: Any) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=function, args=args)
    process.start()
    return process


def _wait(processes: Sequence[BaseProcess], timeout_s: float, logs: Sequence[Path]) -> None:
    deadline = time.monotonic() + timeout_s
    failed = None
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
        codes = [process.exitcode for process in processes]
        if failed is None and any(codes):
            failed = next(rank for rank, code in enumerate(codes) if code)
            deadline = min(deadline, time.monotonic() + GRACE_S)
    late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    if failed is None and any(process.exitcode for process in processes) and not late:
        failed = next(rank for rank, process in enumerate(processes) if process.exitcode)
    if failed is not None:
        raise NotRun(f"rank {failed} failed: {_last_line(logs[failed])}")
    if late:
        raise NotRun(f"ranks {late} did not end in {timeout_s:.0f} s")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
