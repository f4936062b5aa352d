"""A run on a Ray cluster: `python -m pipeline submit address=http://head:8265 [key=value ...]`.

What travels is code and conf; data, store and results stay where every node sees them.
"""

import asyncio
import logging
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from aiohttp import ClientError

from pipeline.config import CONF, check_folder, compose
from pipeline.places import paths_of_here
from pipeline.workers import cluster_size, job_client
from stages.contract.errors import ConfigurationError, require, require_one_of
from stages.contract.shown import one_line

log = logging.getLogger(__name__)

ROOT = CONF.parent
CARRIED = ("pipeline", "stages", "evenshard", "conf", "data/sample", "pyproject.toml")
MOST_BYTES = 16 << 20
NEVER = {".git", ".venv", "venv", "node_modules"}
DATA_SUFFIXES = (
    *(".parquet", ".arrow", ".jsonl", ".csv", ".tsv", ".gz", ".zst", ".zip", ".tar"),
    *(".safetensors", ".gguf", ".bin", ".pt", ".pth", ".pkl", ".npy", ".npz"),
)
LABEL = "evenshard"
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
SECONDS_BETWEEN_LOOKS = 1.0
MOST_FAILURES = 120  # in a row, after which a cluster is given up
T = TypeVar("T")


@dataclass(frozen=True)
class Words:
    """The words after `submit`, taken apart.

    Attributes
    ----------
    address : str
        Of the cluster's dashboard.
    python : str
        The interpreter of the cluster that has the packages.
    follow, pip : bool
        Whether to stay and show the log; whether the job installs its packages first.
    job : str
        Of `submit-status` and `submit-stop`: which job; empty for all, or the only one.
    overrides : tuple of str
        What the run is told.
    """

    address: str
    python: str
    follow: bool
    pip: bool
    job: str
    overrides: tuple[str, ...]


def parse(words: Sequence[str]) -> Words:
    """Take the words of a command apart.

    Raises
    ------
    ConfigurationError
        If there is no address, or a switch is neither true nor false.
    """
    own = {"address": os.environ.get("RAY_API_SERVER_ADDRESS", ""), "id": "", "python": ""}
    own |= {"follow": "true", "pip": "false"}
    overrides = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key in own:
            own[key] = value.strip("\"'")
        else:
            overrides.append(word)
    address = own["address"]
    require(
        address.startswith(("http://", "https://")),
        f"address={address} must be the dashboard of a Ray cluster: address=http://head:8265 "
        f"(ADDRESS=... with make)",
    )
    for switch in ("follow", "pip"):
        require_one_of(switch, own[switch], ("true", "false"))
    here = urlsplit(address).hostname in ("127.0.0.1", "localhost", "::1")
    return Words(
        address=address,
        python=own["python"] or (sys.executable if here else "python"),
        follow=own["follow"] == "true",
        pip=own["pip"] == "true",
        job=own["id"],
        overrides=tuple(overrides),
    )


def submit(words: Sequence[str]) -> int:
    """Send a run to a cluster, follow its log, and return its exit status."""
    told = parse(words)
    overrides = [*told.overrides, *paths_of_here(told.overrides, ROOT)]
    config = compose(overrides)
    # By the words of the user: those added above name `out`, which is no consent to replace a set.
    check_folder(config, told.overrides, written_here=False)
    client = job_client(told.address)
    overrides += compute_of(told.overrides, told.address)
    compose(overrides)
    with tempfile.TemporaryDirectory(prefix="evenshard-") as folder:
        size = pack(ROOT, Path(folder))
        log.info("working directory: %d bytes (code and conf; no data, no .git)", size)
        job: str = client.submit_job(
            entrypoint=shlex.join([told.python, "-m", "pipeline", "curate", *overrides]),
            runtime_env=runtime_env(Path(folder), told.pip),
            metadata={LABEL: config.name},
        )
    log.info("job %s runs on %s", job, told.address)
    log.info(
        "every node must see store=%s and models=%s under these names", config.store, config.models
    )
    if not told.follow:
        return 0
    try:
        return follow(client, job)
    except KeyboardInterrupt:
        log.warning("job %s goes on without you; `make submit-stop ID=%s` ends it", job, job)
        return 130


def submit_status(words: Sequence[str]) -> int:
    """Say how the jobs of a cluster are, or the one of `id=...`; its log too."""
    told = parse(words)
    client = job_client(told.address)
    for details in _ours(client, told.job):
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime((details.start_time or 0) / 1e3))
        sys.stdout.write(
            f"{details.submission_id}  {details.status.value:9s}  since {since}  "
            f"{details.metadata[LABEL]}  {one_line(details.message or '')}\n"
        )
        if told.job:
            sys.stdout.write(client.get_job_logs(told.job))
    return 0


def submit_stop(words: Sequence[str]) -> int:
    """End a job: that of `id=...`, or the only one that runs. Its finished parts are kept."""
    told = parse(words)
    client = job_client(told.address)
    running = [job for job in _ours(client, told.job) if job.status.value not in ENDED]
    names = [job.submission_id for job in running]
    require(bool(names), "no job runs that could be stopped; see `make submit-status`")
    require(len(names) == 1, f"id= must be one of {', '.join(names)}, since several jobs run")
    client.stop_job(names[0])
    status = _wait_for_end(client, names[0]).status.value
    log.info("job %s: %s; finished parts are kept, submit again to go on", names[0], status)
    return 0


def pack(root: Path, folder: Path) -> int:
    """Copy what a job needs into an empty folder, and nothing else.

    Returns
    -------
    int
        Bytes of all files.

    Raises
    ------
    ConfigurationError
        If there is data, a repository or an environment among the code, or it is too large.
    """
    sizes: dict[str, int] = {}
    for name in CARRIED:
        top = root / name
        files = [top] if top.is_file() else sorted(p for p in top.rglob("*") if not p.is_dir())
        for file in files:
            inner = file.relative_to(root)
            if "__pycache__" in inner.parts:
                continue
            _check_carried(inner, file)
            sizes[str(inner)] = file.stat().st_size
            (folder / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / inner)
    size = sum(sizes.values())
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    require(
        size <= MOST_BYTES,
        f"the working directory has {size} bytes and must have at most {MOST_BYTES}; the largest "
        f"files are {', '.join(largest)}: move data out of the folders of code",
    )
    return size


def _check_carried(inner: Path, file: Path) -> None:
    wrong = (
        NEVER & set(inner.parts)
        or file.is_symlink()
        or (file.suffix in DATA_SUFFIXES and inner.parts[:2] != ("data", "sample"))
    )
    require(
        not wrong,
        f"{inner} does not belong into the working directory of a job, which holds code and "
        f"settings; move it out of {inner.parts[0]}/",
    )


def compute_of(overrides: Sequence[str], address: str) -> list[str]:
    """Choose workers by what the cluster has, where the run is not told; always use the cluster."""
    extra = [] if _gives(overrides, "compute.address") else ["compute.address=auto"]
    if _gives(overrides, "compute", "compute/", "compute.workers"):
        return extra
    nodes, cpus, gpus = cluster_size(address)
    preset, workers = ("cluster", gpus) if gpus else ("cpu", cpus)
    require(workers > 0, f"the cluster at address={address} has neither GPUs nor CPUs; start nodes")
    log.info(
        "the cluster has %d nodes, %d CPUs, %d GPUs: compute=%s compute.workers=%d (both can be "
        "given)",
        *(nodes, cpus, gpus, preset, workers),
    )
    return [f"compute={preset}", f"compute.workers={workers}", *extra]


def _gives(overrides: Sequence[str], *keys: str) -> bool:
    return any(override.partition("=")[0] in keys for override in overrides)


def runtime_env(folder: Path, pip: bool) -> dict[str, Any]:
    """Say what a job needs of a node: its working directory, and its packages if asked.

    By default the cluster has the packages, in the versions that its owner chose; installing
    them per job takes minutes on each node.
    """
    wanted: dict[str, Any] = {"working_dir": str(folder)}
    if pip:
        wanted["pip"] = packages(folder / "pyproject.toml")
    return wanted


def packages(pyproject: Path) -> list[str]:
    """List what the extra `curate` asks for, without Ray itself, which the cluster has."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]

    def spelled(names: Iterable[str]) -> list[str]:
        found = []
        for name in names:
            own = re.fullmatch(rf"{project['name']}\[(\w+)\]", name)
            found += spelled(extras[own[1]]) if own else [name]
        return found

    return [name for name in spelled(extras["curate"]) if not name.startswith("ray")]


def follow(client: Any, job: str) -> int:
    """Write a job's log as it grows, and return the exit status of its run.

    A broken connection is made again; what was shown is not shown twice.

    Raises
    ------
    ConfigurationError
        If the cluster is out of reach for too long.
    """
    shown = _Shown()
    _patiently(job, lambda: asyncio.run(shown.go_on(client, job)), lambda: shown.count)
    ended = _wait_for_end(client, job)
    log.info("job %s: %s", job, ended.message or ended.status.value)
    if ended.status.value == "SUCCEEDED":
        return 0
    if ended.status.value == "STOPPED":
        return 130
    return ended.driver_exit_code if (ended.driver_exit_code or 0) > 0 else 1


class _Shown:
    """How many characters of a log were written so far."""

    def __init__(self) -> None:
        self.count = 0

    async def go_on(self, client: Any, job: str) -> None:
        """Write the rest of a log, which the server tells from its beginning."""
        seen = 0
        async for text in client.tail_job_logs(job):
            sys.stdout.write(text[max(0, self.count - seen) :])
            sys.stdout.flush()
            seen += len(text)
            self.count = max(self.count, seen)


def _wait_for_end(client: Any, job: str) -> Any:
    while True:
        details = _patiently(job, lambda: client.get_job_info(job))
        if details.status.value in ENDED:
            return details
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _patiently(job: str, ask: Callable[[], T], count: Callable[[], int] = lambda: 0) -> T:
    """Ask a cluster again while it does not answer; `count` grows with what it has told."""
    failures, before = 0, count()
    while True:
        try:
            return ask()
        except (OSError, RuntimeError, ClientError) as error:
            failures = 1 if count() > before else failures + 1
            before = count()
            if failures == 1:
                log.warning("job %s is out of reach (%s); trying again", job, error)
            if failures >= MOST_FAILURES:
                raise ConfigurationError(
                    f"the cluster is out of reach ({one_line(str(error))}); job {job} may still "
                    f"run: ask with `make submit-status`, once address=... answers again"
                ) from error
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _ours(client: Any, job: str) -> list[Any]:
    """Give the jobs that `submit` sent, oldest first, or the one that is named."""
    jobs = [details for details in client.list_jobs() if LABEL in (details.metadata or {})]
    if job:
        jobs = [details for details in jobs if details.submission_id == job]
        if not jobs:
            raise ConfigurationError(f"id={job} is no job of this cluster; see `submit-status`")
    return sorted(jobs, key=lambda details: details.start_time or 0)
