"""Parts to workers and receipts back: in this process, or as Ray actors.

The only file that imports Ray. `make` runs once per worker (it loads the model); a worker takes
a part, writes it, and returns a few numbers. No array and no text crosses Ray.
"""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import ComputeConfig
from pipeline.failures import Failures, PartsFailed
from stages.contract.errors import ConfigurationError, DataError, DraftGone, require
from stages.contract.parts import PartSpec, Receipt, Worker, cut
from stages.contract.shown import one_line

log = logging.getLogger(__name__)

TRIES_PER_PART = 3
SECONDS_UNTIL_WORD = 60.0
SECONDS_WITHOUT_ROOM = 600.0
LOOPBACK_SWITCH = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
OBJECT_STORE_BYTES = 256 << 20
# Workers that found room once in this run: if they do not later, nodes were lost in between.
FITTED: set[tuple[str, int, float, float]] = set()
# Errors that end the work at once, since no other part would fare better.
FOR_PEOPLE = (ConfigurationError, DataError, DraftGone)


def spread(
    make: Callable[[], Worker],
    parts: Sequence[PartSpec],
    *,
    compute: ComputeConfig,
    uses_gpu: bool,
) -> Iterator[Receipt]:
    """Run every part and yield receipts as they come.

    A single part that needs no GPU is done in this process: starting actors costs more.

    Parameters
    ----------
    make : callable
        Called once per worker; returns the function that does a part.
    parts : sequence of PartSpec
        What is to be done.
    compute : ComputeConfig
        How many workers of which size.
    uses_gpu : bool
        Whether a worker holds the GPUs of `compute.gpus_per_worker`.

    Raises
    ------
    ConfigurationError
        If the cluster cannot hold the workers that are asked.
    PartsFailed
        If a part failed, after the others finished.
    """
    if not parts:
        return
    if compute.workers == 0 or (len(parts) == 1 and not uses_gpu):
        yield from _in_process(make, parts)
    else:
        crew = _Crew(make, parts, compute, uses_gpu)
        try:
            yield from crew.run()
        finally:
            crew.dismiss()


def check_gpus(compute: ComputeConfig) -> None:
    """Check that there is room for the workers of a pass, as hiring them would; hire none.

    Raises
    ------
    ConfigurationError
        If there are too few GPUs.
    """
    if compute.workers > 0:
        _Crew(_no_worker, cut(compute.workers, 1), compute, uses_gpu=True)
        return
    import torch

    have = torch.cuda.device_count()
    require(
        compute.gpus_per_worker <= have,
        f"compute.gpus_per_worker={compute.gpus_per_worker:g} must be <= {have}, the GPUs that "
        f"this process sees; run where there are more, or set compute.gpus_per_worker=0 for a CPU",
    )


def _no_worker() -> Worker:
    raise AssertionError("this crew hires nobody")


def _in_process(make: Callable[[], Worker], parts: Sequence[PartSpec]) -> Iterator[Receipt]:
    work = make()
    failures = Failures(len(parts))
    for spec in parts:
        try:
            receipt = work(spec)
        except FOR_PEOPLE:
            raise
        except Exception as error:
            log.exception("part %d failed", spec.index)
            failures.add(spec, error)
        else:
            yield receipt
    failures.raise_if_any()


class _Actor:
    """A worker in its own process."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self.make = make
        self.work: Worker | None = None

    def prepare(self) -> None:
        """Load what the worker needs; apart from `__init__`, so that its errors come back whole."""
        self.work = self.make()

    def do(self, spec: PartSpec) -> Receipt:
        """Make one part."""
        assert self.work is not None
        return self.work(spec)


@dataclass
class _Task:
    """What an actor is doing: a part, or getting ready where there is none."""

    actor: Any
    spec: PartSpec | None
    since: float


class _Crew:
    """Actors that take parts as they fall free; a dead actor is replaced a few times."""

    def __init__(
        self,
        make: Callable[[], Worker],
        parts: Sequence[PartSpec],
        compute: ComputeConfig,
        uses_gpu: bool,
    ) -> None:
        self.make = make
        self.queue = deque(parts)
        self.tries = dict.fromkeys((spec.index for spec in parts), 0)
        self.failures = Failures(len(parts))
        self.gpus = compute.gpus_per_worker if uses_gpu else 0.0
        self.cpus = compute.cpus_per_worker
        self.size = min(compute.workers, len(parts))
        self.deaths_left = TRIES_PER_PART * self.size
        self.tasks: dict[Any, _Task] = {}
        # For all workers, not for those of this stage: a later one may have more parts.
        connect(compute.address, num_cpus=math.ceil(compute.workers * self.cpus))
        self._check_room(compute)

    def run(self) -> Iterator[Receipt]:
        """Yield receipts until no part is left; then tell what failed."""
        import ray

        for _ in range(self.size):
            self._hire()
        while self.tasks:
            ready, _ = ray.wait(list(self.tasks), num_returns=1, timeout=SECONDS_UNTIL_WORD)
            if not ready:
                self._tell_waiting()
                self._check_still_room()
            for reference in ready:
                receipt = self._collect(reference)
                if receipt is not None:
                    yield receipt
        self.failures.raise_if_any()

    def dismiss(self) -> None:
        """Free the actors' memory and GPUs for the next stage."""
        import ray

        for task in self.tasks.values():
            ray.kill(task.actor)
        self.tasks.clear()

    def _check_room(self, compute: ComputeConfig) -> None:
        import ray

        kind = (compute.address, compute.workers, self.cpus, self.gpus)
        places = self._places()
        if kind in FITTED and 0 < places < self.size:
            log.warning(
                "the cluster has lost nodes: %d of %d workers find room; going on with these",
                *(places, self.size),
            )
            self.size = places
            return
        have = ray.cluster_resources()
        for name, key, each in (
            ("GPU", "compute.gpus_per_worker", self.gpus),
            ("CPU", "compute.cpus_per_worker", self.cpus),
        ):
            need = each * self.size
            if need > have.get(name, 0.0):
                raise ConfigurationError(
                    f"compute.workers={compute.workers} needs {need:g} {name}s ({key}={each:g}), "
                    f"the cluster has {have.get(name, 0.0):g}; lower compute.workers or {key}"
                )
        if places < self.size:
            raise ConfigurationError(
                f"compute.workers={compute.workers} of compute.cpus_per_worker={self.cpus:g} and "
                f"compute.gpus_per_worker={self.gpus:g} do not fit: the nodes of the cluster have "
                f"room for {places}, since a worker lies on one node; lower one of the three"
            )
        FITTED.add(kind)

    def _places(self) -> int:
        """Count the workers that fit on the living nodes, if nothing else ran there."""
        import ray

        places = 0
        for node in ray.nodes():
            if node["Alive"]:
                have = node["Resources"]
                rooms = [
                    int(have.get(name, 0.0) / each + 1e-9)
                    for name, each in (("GPU", self.gpus), ("CPU", self.cpus))
                    if each > 0
                ]
                places += min(rooms, default=self.size)
        return places

    def _check_still_room(self) -> None:
        """Give up when all nodes that could hold a worker are gone, and none comes for long."""
        now = time.monotonic()
        waits = [now - task.since for task in self.tasks.values() if task.spec is None]
        if len(waits) == len(self.tasks) and min(waits) > SECONDS_WITHOUT_ROOM:
            if self._places() > 0:
                return  # something else holds the room, or a model takes long to load
            raise PartsFailed(
                f"no node of the cluster can hold a worker of compute.cpus_per_worker="
                f"{self.cpus:g} and compute.gpus_per_worker={self.gpus:g} since "
                f"{min(waits):.0f} s; finished parts are kept: start nodes and run again"
            )

    def _hire(self) -> None:
        import ray

        remote = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_restarts=0)(_Actor)
        actor = remote.remote(self.make)
        self.tasks[actor.prepare.remote()] = _Task(actor, None, time.monotonic())

    def _collect(self, reference: Any) -> Receipt | None:
        """Take a finished task, and give its actor the next part."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        task = self.tasks.pop(reference)
        receipt: Receipt | None = None
        try:
            receipt = ray.get(reference)
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if task.spec is None or isinstance(cause, FOR_PEOPLE):
                ray.kill(task.actor)
                raise cause from error
            log.error("part %d failed: %s", task.spec.index, error)
            self.failures.add(task.spec, cause)
        except RayError as error:  # the actor, its node, or the way to it is lost
            self._replace(task, error)
            return None
        if self.queue:
            spec = self.queue.popleft()
            self.tasks[task.actor.do.remote(spec)] = _Task(task.actor, spec, time.monotonic())
        else:
            ray.kill(task.actor)
        return receipt

    def _replace(self, task: _Task, error: Exception) -> None:
        """Hire anew for a dead actor and try its part again, a bounded number of times."""
        import ray

        ray.kill(task.actor)  # one that is only out of reach must not hold its GPU
        self.deaths_left -= 1
        if task.spec is None:
            log.warning("a worker died before its first part; hiring another")
        else:
            self.tries[task.spec.index] += 1
            if self.tries[task.spec.index] >= TRIES_PER_PART:
                self.failures.add(task.spec, error)
            else:
                log.warning(
                    "the worker of part %d (rows %d to %d) died; trying the part again",
                    task.spec.index,
                    task.spec.start,
                    task.spec.stop - 1,
                )
                self.queue.appendleft(task.spec)
        if self.deaths_left < 0:
            raise PartsFailed(
                f"workers died {TRIES_PER_PART * self.size + 1} times, the last one so: {error}; "
                f"finished parts are kept. If they ran out of memory, lower "
                f"embed.tokens_per_batch or compute.workers"
            ) from error
        if self.queue:
            self._hire()

    def _tell_waiting(self) -> None:
        now = time.monotonic()
        for task in self.tasks.values():
            what = f"part {task.spec.index}" if task.spec else "a worker getting ready"
            log.warning("still waiting for %s since %.0f s", what, now - task.since)


def connect(address: str, *, num_cpus: int) -> None:
    """Join a Ray cluster, or start one on this machine whose ports are all on loopback.

    By itself Ray opens its ports to the network, also on one machine, and whoever reaches them
    can run code. The switch, made for systems without clusters, is read when Ray is imported.

    Parameters
    ----------
    address : str
        Of the cluster; empty to start one.
    num_cpus : int
        Slots that the workers need. A cluster of our own has at least so many: on a machine
        with fewer cores the workers share them, since they were asked for.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if not address:
        os.environ.setdefault(LOOPBACK_SWITCH, "0")
    import ray

    if ray.is_initialized():
        return
    if address:
        ray.init(address=address, logging_level=logging.ERROR)
        return
    ray.init(
        address="local",
        num_cpus=max(num_cpus, len(os.sched_getaffinity(0))),
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        logging_level=logging.ERROR,
        _node_ip_address="127.0.0.1",
    )


def disconnect() -> None:
    """Leave the cluster, or end the one that `connect` started."""
    import sys

    if "ray" in sys.modules:
        import ray

        ray.shutdown()


def job_client(address: str) -> Any:
    """Reach the job server of a cluster by the address of its dashboard.

    Raises
    ------
    ConfigurationError
        If nobody answers there.
    """
    _use_token()
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        raise ConfigurationError(
            f"address={address} must be the dashboard of a running Ray cluster, such as "
            f"http://head:8265, which lets this user in (RAY_AUTH_TOKEN): {one_line(str(error))}"
        ) from error


def _use_token() -> None:
    """Show the cluster's token where this user has one, as `ray.init` does by itself."""
    kept = (Path.home() / ".ray" / "auth_token").exists()
    if kept or {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def cluster_size(address: str) -> tuple[int, int, int]:
    """Ask a cluster for its living nodes, and their CPUs and GPUs in all."""
    from ray.util.state import list_nodes

    nodes = [node for node in list_nodes(address=address) if node.state == "ALIVE"]
    have = [node.resources_total or {} for node in nodes]
    cpus, gpus = (int(sum(each.get(name, 0.0) for each in have)) for name in ("CPU", "GPU"))
    return len(nodes), cpus, gpus
