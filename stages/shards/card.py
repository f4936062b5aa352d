"""The manifest and the card of a published set, as plain values and text."""

import hashlib
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, cast

from evenshard.shards import (
    FORMAT,
    FORMAT_VERSION,
    REJECTS,
    ClusterFacts,
    Manifest,
    RejectFacts,
    ScheduleFacts,
    WeightFacts,
    WorkerFacts,
)
from stages.allocate.figures import errors_of
from stages.contract.parts import Facts
from stages.screen.evidence import duplicates_text, leaks_text

CONVENTIONS = {
    "sample": (
        "of the row, above 0, with mean 1 over the set: a step's loss is the sum over its rows "
        "of weight times the row's mean token loss, divided by the number of rows of the step"
    ),
    "token": (
        "of the row, above 0, with mean 1 over the set: a step's loss is the sum over its rows "
        "of weight times the row's summed token loss, divided by the sum of weight times the "
        "row's number of trained tokens over all workers"
    ),
    "rank": (
        "of the row, above 0, with mean 1 over the set, the same for all rows of a worker's "
        "cluster: a worker's loss is its mean token loss times its weight, averaged over workers"
    ),
}


class ChangeFacts(TypedDict):
    """The rows that were changed on their way to the tokens: lines of the file, by change."""

    file: str
    lines: int
    by_change: dict[str, int]
    sha256: str


class Published(Manifest):
    """The manifest with what only curating knows.

    `screen` has the entries `duplicates` and `near_duplicates`, and `leaks` where benchmarks were
    given; `changes` is there where rows were changed; `quality` sets the figures of the selection
    beside those of random ones (see `stages.allocate.figures.beside_random`).
    """

    screen: Facts
    quality: NotRequired[Facts]
    changes: NotRequired[ChangeFacts]


def build_manifest(
    *,
    name: str,
    seed: int,
    allocate: Facts,
    screen: Facts,
    settings: Facts,
    overrides: list[str],
    workers: list[WorkerFacts],
    rejects: RejectFacts,
    changes: ChangeFacts | None,
    keys: Mapping[str, str],
    versions: Mapping[str, str],
) -> Published:
    """Gather what a trainer, a checker and a reader need to know of a set.

    Parameters
    ----------
    name, seed : str, int
        Of the run.
    allocate : dict
        Facts of the allocate stage.
    screen : dict
        What the screen found: duplicates, near_duplicates, and leaks where it looked for them.
    settings : dict
        The whole configuration.
    overrides : list of str
        The settings that were given on the command line.
    workers : list of WorkerFacts
        One entry per shard, in order.
    rejects : RejectFacts
        Of rejects.parquet.
    changes : ChangeFacts or None
        Of changes.parquet, where there is one.
    keys, versions : mapping of str to str
        Keys of all artifacts, versions of the packages that decide bytes.
    """
    section = settings["allocate"]
    manifest = Published(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        name=name,
        seed=seed,
        world_size=section["num_workers"],
        micro_batch=section["micro_batch"],
        accumulation=section["accumulation"],
        rows=allocate["rows"],
        rows_per_worker=allocate["rows"] // section["num_workers"],
        steps_per_epoch=allocate["steps_per_epoch"],
        tokens=allocate["tokens"],
        asked=allocate["asked"],
        got=allocate["got"],
        weights=WeightFacts(
            objective=section["objective"],
            convention=CONVENTIONS[section["objective"]],
            min=allocate["weights"]["min"],
            max=allocate["weights"]["max"],
            effective_sample_size=allocate["weights"]["effective_sample_size"],
        ),
        schedule=cast(ScheduleFacts, allocate["schedule"]),
        clusters=cast(list[ClusterFacts], allocate["clusters"]),
        workers=workers,
        rejects=rejects,
        settings=settings,
        overrides=overrides,
        keys=dict(keys),
        versions=dict(versions),
        screen=screen,
    )
    if "quality" in allocate:
        manifest["quality"] = allocate["quality"]
    if changes:
        manifest["changes"] = changes
    return manifest


def build_card(manifest: Published) -> str:
    """Write a data-set card whose `configs:` make `datasets.load_dataset` read the folder.

    `datasets` names what it has read by the last name of the folder and by these lines, not by the
    files (5.2, `LocalDatasetModuleFactory`). So the hashes stand in them: without, a set that was
    made anew would be read as the old one, without a word.
    """
    workers = manifest["workers"]
    every = hashlib.sha256("".join(worker["sha256"] for worker in workers).encode()).hexdigest()
    lines = ["---", "configs:", "- config_name: default", f"  description: sha256 {every}"]
    lines += ["  data_files:", "  - split: train"]
    lines += ["    path:", *(f"    - {worker['file']}" for worker in workers)]
    for worker in workers:
        lines += [
            f"- config_name: worker-{worker['worker']:05d}",
            f"  description: sha256 {worker['sha256']}",
            "  data_files:",
            "  - split: train",
            f"    path: {worker['file']}",
        ]
    lines += ["---", "", f"# {manifest['name']}", ""]
    lines += _body(manifest)
    return "\n".join(lines) + "\n"


def changes_text(changes: ChangeFacts) -> str:
    """Say how many changes were made to rows, of which kinds, and where they are listed."""
    kinds = ", ".join(f"{count} {change}" for change, count in changes["by_change"].items())
    return f"{changes['lines']} changes of rows ({kinds}), listed in {changes['file']}"


def quality_text(quality: Facts) -> str:
    """Say how far the kept rows' gradient is from that of all rows, beside random rows."""
    own, random, ratio = errors_of(quality)
    told = "the same" if ratio == 1.0 else f"{ratio:.2f} times"
    return (
        f"gradient error {own:.3f}, of random rows {random:.3f} ± "
        f"{quality['random_std']['gradient_error']:.3f} ({told})"
    )


def _body(manifest: Published) -> list[str]:
    weights, schedule = manifest["weights"], manifest["schedule"]
    rejected = manifest["rejects"]["rows"]
    figures: list[tuple[str, Any]] = [
        ("asked", manifest["asked"]),
        ("got", manifest["got"]),
        ("shards", f"{manifest['world_size']} of {manifest['rows_per_worker']} rows each"),
        (
            "one step",
            f"micro-batch {manifest['micro_batch']} x accumulation {manifest['accumulation']} "
            f"x {manifest['world_size']} workers; {manifest['steps_per_epoch']} steps an epoch",
        ),
        (
            "weights",
            f"{weights['min']:.4g} to {weights['max']:.4g}, effective sample size "
            f"{weights['effective_sample_size']:.1%}, objective {weights['objective']}",
        ),
        ("schedule", f"{schedule['kind']}: {schedule['reason']}"),
        ("waiting", f"busiest worker over the mean, {schedule['imbalance']:.3f} in tokens"),
        ("rejects", f"{rejected} rows, each with its reason, in `{REJECTS}`"),
        ("duplicates", duplicates_text(manifest["screen"])),
    ]
    if "quality" in manifest:
        figures.append(("quality", quality_text(manifest["quality"])))
    if "leaks" in manifest["screen"]:
        figures.append(("leaks", leaks_text(manifest["screen"]["leaks"])))
    if "changes" in manifest:
        figures.append(("changes", changes_text(manifest["changes"])))
    body = [
        "Balanced, weighted shards of an instruction set, one Parquet file per data-parallel "
        "worker, made by evenshard. Row order is part of the set: every step over all workers "
        "holds the clusters in proportion. Do not shuffle, split or pack the files again.",
        "",
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {text} |" for name, text in figures),
        "",
        "| cluster | candidates | rows they stand for | kept |",
        "| ---: | ---: | ---: | ---: |",
        *(
            f"| {c['cluster']} | {c['candidates']} | {c['mass']} | {c['kept']} |"
            for c in manifest["clusters"]
        ),
        "",
        "## Use",
        "",
        "```python",
        "import evenshard",
        "",
        'shard = evenshard.load_shard("<this folder>", rank)  # input_ids, labels, weight, row_id',
        "```",
        "",
        "A Trainer that gets these rows as `train_dataset` cuts them again; "
        "`evenshard.WeightedShards` keeps it from that, and docs/trainers.md has the shortest "
        "program for each trainer.",
        "",
        f"The weights are {weights['convention']}. Check the folder with "
        "`evenshard verify <this folder>`.",
    ]
    return body
