"""Runs a function on several gloo ranks, each its own process, and never waits for ever.

    results = run_ranks(work, 2, folder)    # [work(0, 2, folder), work(1, 2, folder)]

`work` must be importable (a function at the top of a module). The process group is set up before
it is called, and the variables that launchers set (RANK, WORLD_SIZE, MASTER_PORT, ...) are there.
"""

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

TIMEOUT_S = 120.0
GRACE_S = 3.0  # for the other ranks, once one has failed


class RankError(AssertionError):
    """A rank raised, died, or did not end in time; the message holds the ranks' tracebacks."""


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    """Call `function(rank, world_size, *args)` on every rank, and give what they return.

    Results must be picklable. A rank that raises ends the others; none outlives the call.
    """
    context = multiprocessing.get_context("spawn")
    port = _free_port()
    pipes, processes = [], []
    for rank in range(world_size):
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=_rank_main, args=(there, port, function, rank, world_size, args), daemon=True
        )
        process.start()
        there.close()
        pipes.append(here)
        processes.append(process)
    try:
        return _collect(pipes, timeout_s)
    finally:
        for process in processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()


def _collect(pipes: list[Connection], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    faults: dict[int, str] = {}
    deadline = time.monotonic() + timeout_s
    while len(results) + len(faults) < len(pipes):
        open_pipes = [p for rank, p in enumerate(pipes) if rank not in results | faults]
        ready = wait(open_pipes, max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                succeeded, value = pipes[rank].recv()
            except EOFError:
                succeeded, value = False, "died without a word"
            if succeeded:
                results[rank] = value
            else:
                faults[rank] = value
                deadline = min(deadline, time.monotonic() + GRACE_S)
    if len(results) == len(pipes):
        return [results[rank] for rank in range(len(pipes))]
    hung = [rank for rank in range(len(pipes)) if rank not in results | faults]
    texts = [f"rank {rank}: {text}" for rank, text in sorted(faults.items())]
    texts += [f"rank {rank}: stopped by the time limit" for rank in hung]
    raise RankError("\n".join(texts))


def _rank_main(
    pipe: Connection,
    port: int,
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    args: tuple[Any, ...],
) -> None:
    os.environ.update(
        {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": "1",
            "ACCELERATE_USE_CPU": "1",
        }
    )
    try:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        result = function(rank, world_size, *args)
        pipe.send((True, result))
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        pipe.send((False, traceback.format_exc()))
        os._exit(1)  # a group whose other ranks wait would not be destroyed in time


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
