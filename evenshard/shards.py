"""The shard contract: what a published folder holds, and the one way to find a worker's file.

A folder holds `worker-00000-of-00004.parquet ...` of one schema and `manifest.json`, which is
written last: its existence means that the rest is there. It comes to its place by `swap`.
Longer than other files, since all that stages may import from here is in this one.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from evenshard.swap import draft_of as draft_of
from evenshard.swap import swap as swap

FORMAT = "evenshard-shards"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
REJECTS = "rejects.parquet"
IGNORED_LABEL = -100  # a label that is not trained
OBJECTIVES = ("sample", "token", "rank")  # what weights multiply

SHARD_SCHEMA = pa.schema(
    [
        ("row_id", pa.int64()),
        ("uid", pa.string()),
        ("source", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("num_tokens", pa.int32()),
        ("cluster", pa.int32()),
        ("multiplicity", pa.int32()),
        ("weight", pa.float32()),
        ("meta", pa.string()),
    ]
)

_SHARD_NAME = re.compile(r"worker-(\d{5,})-of-(\d{5,})\.parquet")

StrPath = str | os.PathLike[str]


class ShardError(ValueError):
    """A folder of shards cannot be used as asked; the message says why and what to do."""


class WeightFacts(TypedDict):
    """What the weights mean; `effective_sample_size` is a share of the rows, in (0, 1]."""

    objective: str
    convention: str
    min: float
    max: float
    effective_sample_size: float


class ScheduleFacts(TypedDict):
    """How the rows of a step were dealt to the workers.

    `imbalance` is the sum over steps of the largest worker's tokens, over that of the mean's.
    """

    kind: Literal["dealt", "pinned"]
    reason: str
    window_steps: int
    imbalance: float
    max_deviation: float


class ClusterFacts(TypedDict):
    """A cluster's distinct rows, their mass (the sum of multiplicities), and the rows kept."""

    cluster: int
    candidates: int
    mass: int
    kept: int


class WorkerFacts(TypedDict):
    """One worker's file."""

    worker: int
    file: str
    rows: int
    tokens: int
    sha256: str
    num_bytes: int


class RejectFacts(TypedDict):
    """The rows that could not be used, counted by reason."""

    file: str
    rows: int
    by_reason: dict[str, int]
    sha256: str


class Manifest(TypedDict):
    """What `manifest.json` holds. Further keys may come; these are always there."""

    format: str
    format_version: int
    name: str
    seed: int
    world_size: int
    micro_batch: int
    accumulation: int
    rows: int
    rows_per_worker: int
    steps_per_epoch: int
    tokens: int
    asked: str
    got: str
    weights: WeightFacts
    schedule: ScheduleFacts
    clusters: list[ClusterFacts]
    workers: list[WorkerFacts]
    rejects: RejectFacts
    settings: dict[str, Any]
    overrides: list[Any]
    keys: dict[str, str]
    versions: dict[str, Any]


def shard_name(worker: int, world_size: int) -> str:
    """Name a worker's file, such as `worker-00003-of-00008.parquet`."""
    return f"worker-{worker:05d}-of-{world_size:05d}.parquet"


def parse_shard_name(name: str) -> tuple[int, int] | None:
    """Read (worker, world size) from a file name, or None if it is not a shard's."""
    match = _SHARD_NAME.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def file_digest(path: Path) -> str:
    """Hash a file, as the manifest states it."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_manifest(dir: StrPath) -> Manifest:
    """Read and check the manifest of a folder of shards.

    Raises
    ------
    ShardError
        If there is none, or it is not one that this version of evenshard can read.
    """
    folder = Path(dir)
    if not folder.is_dir():
        raise ShardError(f"{folder} is not a folder; give the one that holds {MANIFEST}")
    try:
        manifest: Manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ShardError(
            f"{folder} has no {MANIFEST}: it was not written by evenshard, or is incomplete; "
            "give a folder that `make curate` finished"
        ) from None
    except ValueError as error:
        raise ShardError(
            f"{folder / MANIFEST} is not JSON ({error}); copy the folder again"
        ) from error
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise ShardError(
            f"{folder / MANIFEST} has format={found!r}, must be {FORMAT!r}: "
            "the folder was not written by evenshard"
        )
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ShardError(
            f"{folder / MANIFEST} has format_version={manifest.get('format_version')!r}, this "
            f"evenshard reads {FORMAT_VERSION}; install the evenshard that wrote the folder"
        )
    misfits = list(_misfits(manifest, Manifest, ""))
    if misfits:
        raise ShardError(
            f"{folder / MANIFEST}: {'; '.join(misfits[:5])}; copy the folder again or make it anew"
        )
    return manifest


def find_shard(dir: StrPath, rank: int, world_size: int | None = None) -> Path:
    """Find the file of one worker, and refuse a folder that would train something else.

    Parameters
    ----------
    dir : path
        A published folder.
    rank : int
        The worker, in [0, world size of the folder).
    world_size : int, optional
        The world size of the job; if given, it must be the folder's.

    Raises
    ------
    ShardError
        If the folder is incomplete, mixes sets, or does not fit the rank and world size.
    """
    folder = Path(dir)
    manifest = read_manifest(folder)
    made_for = manifest["world_size"]
    sizes = {parsed[1] for parsed in map(parse_shard_name, os.listdir(folder)) if parsed}
    if sizes - {made_for}:
        raise ShardError(
            f"{folder} mixes shards made for world sizes {sorted(sizes | {made_for})}, "
            f"its manifest says {made_for}; delete the other files or make the folder anew"
        )
    if world_size is not None and world_size != made_for:
        raise ShardError(
            f"world_size={world_size!r} must equal {made_for}, for which {folder} was made; cut "
            f"it anew with `make reshard NAME={manifest['name']} WORLD_SIZE={world_size}`"
        )
    if not 0 <= rank < made_for:
        raise ShardError(
            f"rank={rank} must lie in [0, {made_for}), the ranks of {folder}; pass the global rank"
        )
    path = folder / shard_name(rank, made_for)
    stated = {worker["file"]: worker["num_bytes"] for worker in manifest["workers"]}.get(path.name)
    if not path.is_file() or stated is None:
        raise ShardError(
            f"{path} is missing from the folder or its manifest; copy the folder again"
        )
    if path.stat().st_size != stated:
        raise ShardError(
            f"{path} has {path.stat().st_size} bytes, its manifest says {stated}; copy it again"
        )
    return path


def _misfits(value: object, kind: Any, where: str) -> Iterator[str]:
    """Say where a JSON value departs from a type: a TypedDict, list, dict, Literal or scalar."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind) and isinstance(value, dict):
        for key, inner in get_type_hints(kind).items():
            name = f"{where}.{key}" if where else key
            if key in value:
                yield from _misfits(value[key], inner, name)
            else:
                yield f"{name} is missing"
    elif origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _misfits(item, arguments[0], f"{where}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _misfits(item, arguments[1], f"{where}.{key}")
    elif origin is Literal:
        if value not in arguments:
            yield f"{where}={value!r} must be one of {', '.join(arguments)}"
    elif kind is not Any:
        plain = dict if is_typeddict(kind) else origin or kind
        accepted = (int, float) if plain is float else plain
        if not isinstance(value, accepted) or isinstance(value, bool):
            yield f"{where}={value!r:.60} must be of type {plain.__name__}"
