"""The command `evenshard`: look at a published folder without a trainer or a pipeline."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenshard import __version__
from evenshard.export import TARGETS, export
from evenshard.shards import Manifest, ShardError, read_manifest
from evenshard.verify import Report, WorkerFigures, examine


@dataclass(frozen=True)
class Command:
    """One subcommand: its line of help, its arguments, and what it does (exit status)."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand.

    Returns
    -------
    int
        0 if all is well, 1 if the folder is not; wrong usage exits with 2.
    """
    parser = argparse.ArgumentParser(prog="evenshard", description=__doc__)
    parser.add_argument("--version", action="version", version=f"evenshard {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        command.add_arguments(subparsers.add_parser(name, help=command.help))
    arguments = parser.parse_args(argv)
    return COMMANDS[arguments.command].run(arguments)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=_folder, metavar="DIR", help="the published folder")


def _add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument(
        "--world-size", type=_count, metavar="W", help="processes of the job it is to feed"
    )
    parser.add_argument(
        "--micro-batch", type=_count, metavar="B", help="rows a process takes at a time"
    )


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number >= 1")
    return int(text)


def _run_verify(arguments: argparse.Namespace) -> int:
    report = examine(
        arguments.dir, world_size=arguments.world_size, micro_batch=arguments.micro_batch
    )
    header = ["rank", "file", "rows", "tokens", "clusters", "weight min", "mean", "max"]
    _print_table([header, *(_worker_line(worker) for worker in report.workers)])
    for note in report.notes:
        print(f"\nnote: {note}")
    print()
    if not report.problems:
        print(f"all is well: {_summary(report)}")
        return 0
    lines = [[problem.check, problem.where, problem.message] for problem in report.problems]
    _print_table([["check", "where", "what is wrong"], *lines])
    print(f"\n{len(lines)} problems in {arguments.dir}; do not train on it as it is")
    return 1


def _worker_line(worker: WorkerFigures) -> list[str]:
    numbers = [worker.rows, worker.tokens, worker.clusters]
    counts = ["-" if number is None else str(number) for number in numbers]
    weights = [f"{weight:.4f}" for weight in worker.weights] if worker.weights else ["-"] * 3
    return [str(worker.rank), worker.file, *counts, *weights]


def _summary(report: Report) -> str:
    manifest = report.manifest
    assert manifest is not None  # a folder without one has a problem
    files = f"{len(report.workers)} worker files and {manifest['rejects']['rows']} rejects"
    rows = f"{manifest['rows']} rows, {manifest['rows_per_worker']} a worker"
    coverage = f"{len(manifest['clusters'])} clusters even over {_steps(manifest)}"
    return f"{files}, {rows}, {manifest['tokens']} tokens, {coverage}"


def _steps(manifest: Manifest) -> str:
    size, batch, accumulation = (
        manifest["world_size"],
        manifest["micro_batch"],
        manifest["accumulation"],
    )
    return (
        f"{manifest['steps_per_epoch']} steps of {size} workers x {accumulation} micro-batches "
        f"x {batch} rows"
    )


def _run_info(arguments: argparse.Namespace) -> int:
    try:
        manifest = read_manifest(arguments.dir)
    except ShardError as error:
        print(error, file=sys.stderr)
        return 1
    weights, schedule, rejects = manifest["weights"], manifest["schedule"], manifest["rejects"]
    share = weights["effective_sample_size"]
    reasons = ", ".join(f"{reason} {rows}" for reason, rows in rejects["by_reason"].items())
    lines = [
        ("name", manifest["name"]),
        ("seed", str(manifest["seed"])),
        ("asked", manifest["asked"]),
        ("got", manifest["got"]),
        ("rows", f"{manifest['rows']} ({manifest['rows_per_worker']} a worker)"),
        ("tokens", str(manifest["tokens"])),
        ("epoch", _steps(manifest)),
        ("clusters", str(len(manifest["clusters"]))),
        ("objective", weights["objective"]),
        ("convention", weights["convention"]),
        ("weights", f"{weights['min']:.4f} to {weights['max']:.4f}, mean 1"),
        ("effective", f"{share:.1%} of the rows ({share * manifest['rows']:.0f})"),
        ("schedule", f"{schedule['kind']}: {schedule['reason']}"),
        ("window", f"{schedule['window_steps']} steps"),
        ("imbalance", f"{schedule['imbalance']:.3f} (tokens of the largest worker over the mean)"),
        ("rejects", f"{rejects['rows']} {f'({reasons})' if reasons else ''}".strip()),
        ("overrides", " ".join(map(str, manifest["overrides"])) or "none"),
    ]
    _print_table([[name, text] for name, text in lines])
    return 0


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument("--to", required=True, choices=TARGETS, help="what reads the export")
    parser.add_argument("--out", default="", metavar="DIR2", help="its folder, else DIR-<to>")
    for flag, letter, text in (
        ("--world-size", "W", "processes of the job, else the set's"),
        ("--micro-batch", "B", "rows a process takes at a time, else the set's"),
        ("--repeat-rows", "N", "rows of a repeat, else what brings shares within 5 %%"),
    ):
        parser.add_argument(flag, type=_count, metavar=letter, help=text)
    text = "let a repeat leave out rows, so that it need not be longer than the set"
    parser.add_argument("--allow-drop", action="store_true", help=text)


def _run_export(arguments: argparse.Namespace) -> int:
    try:
        done = export(
            arguments.dir,
            arguments.to,
            out=arguments.out,
            world_size=arguments.world_size,
            micro_batch=arguments.micro_batch,
            repeat_rows=arguments.repeat_rows,
            allow_drop=arguments.allow_drop,
        )
    except ShardError as error:
        print(error, file=sys.stderr)
        return 1
    _print_table([["written", str(done.folder)], *map(list, done.figures.items())])
    print("\nwhat is lost:")
    _print_table([[f"  {name}", str(text)] for name, text in done.lost.items()])
    return 0


def _print_table(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


COMMANDS = {
    "verify": Command(
        "check a folder of shards, exit 1 if it is not well", _add_verify_arguments, _run_verify
    ),
    "export": Command(
        "write the set as one file for a trainer that cannot read shards",
        _add_export_arguments,
        _run_export,
    ),
    "info": Command("print the main figures of a folder's manifest", _add_folder, _run_info),
}


if __name__ == "__main__":
    sys.exit(main())
