"""What a row costs as sets grow: the store's stages, `matched`, a schedule, the report, a model.

Sections can be measured one at a time; figures of the others stay as they were.

    python -m benchmarks.scale [section ...] [--rows 1000000 10000000] [--folder DIR]
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import scale_matched, scale_model, scale_report, scale_simulate
from benchmarks.results import Figure, report
from benchmarks.scale_store import generate, run_stage
from benchmarks.speed_figures import kept, read
from benchmarks.speed_timing import watch_high_water
from stages.allocate.stage import ALLOCATE_STAGE, AllocateConfig
from stages.cluster.stage import CLUSTER_STAGE, ClusterConfig
from stages.shards.stage import SHARDS, ShardsSettings

NUM_WORKERS = 8
DIM = 64
SIZES = {
    "rows": (1_000_000, 10_000_000),
    "matched": (10_000, 100_000, 1_000_000),
    "simulated": (5_000_000, 50_000_000),
    "report": (100_000, 1_000_000),
}
MOST_MEMORY_MB = 8000
# Of the model, where the benchmark of speed has not measured them.
TOKENS_PER_ROW, OVERHEAD = 500.0, 1.1


def rows(num_rows: int, folder: str | None) -> list[Figure]:
    """Take generated embeddings through cluster, allocate and shards (ids only)."""
    label = f"rows, {num_rows} x {DIM}"
    figures = []
    peaks = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        store = Path(name)
        made = generate(store, num_rows, dim=DIM, mean_tokens=100, text_bytes=0, seed=0)
        for stage, settings in (
            (CLUSTER_STAGE, ClusterConfig(num_clusters=NUM_WORKERS)),
            (ALLOCATE_STAGE, AllocateConfig(budget="50%", num_workers=NUM_WORKERS)),
            (SHARDS, ShardsSettings(NUM_WORKERS)),
        ):
            with watch_high_water() as peak:
                made[stage.name], seconds = run_stage(stage, settings, made, store)
            peaks.append(peak() / 1e6)
            each = f"{label}: {stage.name}, CPU microseconds a row"
            figures.append(Figure(each, 1e6 * seconds / num_rows, None, "lower"))
            figures.append(Figure(f"{label}: {stage.name}, peak MB", peaks[-1], None, "lower"))
    figures.append(Figure(f"{label}: largest peak, MB", max(peaks), MOST_MEMORY_MB, "lower"))
    return figures


def matched(num_rows: int, folder: str | None) -> list[Figure]:
    """Select by `matched`."""
    return scale_matched.measure(num_rows)


def simulated(num_rows: int, folder: str | None) -> list[Figure]:
    """Schedule row ids and token counts."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return scale_simulate.simulate(num_rows, Path(name))


def page(num_rows: int, folder: str | None) -> list[Figure]:
    """Write the report of a generated run."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return scale_report.measure(num_rows, Path(name, "store"), Path(name, "out"))


def model() -> list[Figure]:
    """Compute what was not measured."""
    measured = {figure.figure: figure.value for figure in read("speed")}
    overhead = measured.get("embed: time of target_row over the bare forward", OVERHEAD)
    figures = [Figure("model: time of the pass over the bare forward", overhead, None, "lower")]
    for make, name in (
        (scale_model.llama_7b, "model: 1M rows, 7B"),
        (scale_model.llama_70b, "model: 50M rows, 70B"),
    ):
        for gpus in (8, 64):
            job = make(gpus, tokens_per_row=TOKENS_PER_ROW, overhead=overhead)
            label = f"{name}, {gpus} GPUs"
            figures += [
                Figure(f"{label}: hours, all GPUs at work", job.hours, None, "lower"),
                Figure(f"{label}: hours as the code is", job.hours_in_turn, None, "lower"),
            ]
        figures += [
            Figure(f"{name}: tokens, 10**9", job.tokens / 1e9, None, "lower"),
            Figure(f"{name}: GPUs of a copy", job.gpus_per_copy, None, "lower"),
            Figure(f"{name}: embed table, GB", job.embed_bytes / 1e9, None, "lower"),
            Figure(f"{name}: ids and labels, GB", job.token_bytes / 1e9, None, "lower"),
        ]
    return figures


MEASURES = {"rows": rows, "matched": matched, "simulated": simulated, "report": page}
SECTIONS = (*MEASURES, "model")


def main(arguments: Sequence[str]) -> None:
    """Measure the sections that are named, or all, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("section", nargs="*", default=[], help=", ".join(SECTIONS))
    parser.add_argument(
        "--rows", type=int, nargs="+", help="sizes, for the sections that are named"
    )
    parser.add_argument("--folder", help="where the store goes for the while")
    parser.add_argument("--within", action="store_true", help="measure here, and do not report")
    given = parser.parse_args(arguments)
    sections = given.section or list(SECTIONS)
    unknown = set(sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if given.within:
        for figure in MEASURES[sections[0]](given.rows[0], given.folder):
            print(f"{figure.figure}\t{figure.value!r}\t{figure.target}\t{figure.better}")
        return
    figures = kept("scale", {name: (name,) for name in SECTIONS}, sections)
    for name in sections:
        if name == "model":
            figures[name] = model()
        else:
            figures[name] = []
            for num_rows in given.rows or SIZES[name]:
                figures[name] += alone(name, num_rows, given.folder)
        every = [figure for name in SECTIONS for figure in figures.get(name, [])]
        report("scale", "python -m benchmarks.scale", every)


def alone(section: str, num_rows: int, folder: str | None) -> list[Figure]:
    """Measure in a process of its own, so that memory of one size is not that of another."""
    asked = [
        section,
        "--within",
        "--rows",
        str(num_rows),
        *(["--folder", folder] if folder else []),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *asked],
        cwd=Path(__file__).parent.parent,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = []
    for line in done.stdout.splitlines():
        name, value, target, better = line.split("\t")
        found.append(
            Figure(name, float(value), None if target == "None" else float(target), better)
        )
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
