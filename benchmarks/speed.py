"""How fast each stage is, against a floor or a peer in the same run.

Sections can be measured one at a time; figures of the others stay as they were.

    python -m benchmarks.speed [section ...] [--small] [--data mix.jsonl]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import speed_cluster, speed_embed, speed_stages
from benchmarks.results import Figure, report
from benchmarks.speed_figures import kept

MIX = Path("../shared/data/mix/train.jsonl")
NUM_WORKERS = 4
Section = Callable[[str, bool], list[Figure]]


def embed(data: str, small: bool) -> list[Figure]:
    """Measure the pass."""
    limit, length, rounds = (16, 256, 2) if small else (96, 1024, 3)
    overrides = [f"rows.path={data}", f"rows.limit={limit}", f"tokens.max_length={length}"]
    return speed_embed.measure(overrides, rounds)


def tokens(data: str, small: bool) -> list[Figure]:
    """Measure rendering, masking and writing."""
    limit = 500 if small else 10_000
    return speed_stages.measure_tokens([f"rows.path={data}", f"rows.limit={limit}"], 3)


def cluster(data: str, small: bool) -> list[Figure]:
    """Measure k-means and the cap."""
    num_rows, capped = (20_000, 50_000) if small else (75_000, 200_000)
    kmeans = speed_cluster.measure_kmeans(num_rows, 576, 8)
    return kmeans + speed_cluster.measure_cap(capped, 8, 3)


def shards(data: str, small: bool) -> list[Figure]:
    """Measure allocate and shards."""
    return speed_stages.measure_shards(60_000 if small else 1_000_000, 300)


def schedule(data: str, small: bool) -> list[Figure]:
    """Measure how even the tokens of workers are."""
    limit, length = (200, 128) if small else (1000, 512)
    overrides = [f"rows.path={data}", f"rows.limit={limit}", f"tokens.max_length={length}"]
    clusters, num_tokens = speed_stages.real_clusters(overrides, NUM_WORKERS)
    return speed_stages.measure_schedule(clusters, num_tokens, NUM_WORKERS)


def workers(data: str, small: bool) -> list[Figure]:
    """Measure a run with two workers."""
    limit, length = (32, 128) if small else (256, 512)
    overrides = [f"rows.path={data}", f"rows.limit={limit}", f"tokens.max_length={length}"]
    return speed_stages.measure_workers(overrides, 1 if small else 2)


SECTIONS: dict[str, Section] = {
    "embed": embed,
    "tokens": tokens,
    "cluster": cluster,
    "shards": shards,
    "schedule": schedule,
    "workers": workers,
}


BEGINNINGS: dict[str, tuple[str, ...]] = {
    "embed": ("embed",),
    "tokens": ("tokens",),
    "cluster": ("cluster", "soft cap"),
    "shards": ("allocate + shards",),
    "schedule": ("schedule",),
    "workers": ("whole run",),
}


def main(arguments: Sequence[str]) -> None:
    """Measure the sections that are named, or all, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="*", default=[], help=", ".join(SECTIONS))
    parser.add_argument("--small", action="store_true", help="few rows, to see that it works")
    parser.add_argument("--data", help="rows; the mix where it is, else the sample")
    given = parser.parse_args(arguments)
    data = given.data or str(MIX if MIX.exists() else Path("data/sample/sample.jsonl"))
    torch.set_num_threads(1)
    sections = given.section or list(SECTIONS)
    unknown = set(sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    figures = kept("speed", BEGINNINGS, sections)
    small = " --small" if given.small else ""
    for name in sections:
        figures[name] = SECTIONS[name](data, given.small)
        # After each section, so that one that fails costs no other.
        every = [figure for name in SECTIONS for figure in figures.get(name, [])]
        report("speed", f"python -m benchmarks.speed{small}", every)


if __name__ == "__main__":
    main(sys.argv[1:])
