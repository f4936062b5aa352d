"""Real fine-tuning by selected rows: which methods beat a random subset, and by how much.

A small Llama is pre-trained on some sources of a file, then fine-tuned on a pool of the others by
each method and budget (`--regime training-same`: on more rows of all of them): 4 workers by
evenshard's own plan, weights and loss, rank by rank in one process. Runs are independent and
share the cores by processes of one thread each. Each appends a line to
benchmarks/results/training.jsonl with all its settings, and a run whose line is there is not made
again, so a stopped grid goes on where it was.

    python -m benchmarks.training                      the default grid, then the report
    BENCH=full python -m benchmarks.training           the whole grid
    python -m benchmarks.training --methods uniform "matched:learnable=0.7" --budgets 30%
    python -m benchmarks.training --stage 1            tuning and the first stage only
    python -m benchmarks.training --report             only the report
"""

import argparse
import dataclasses
import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS
from benchmarks.training_estimate import grid_seconds, measure_speed
from benchmarks.training_grid import (
    FIRST_BUDGET,
    Run,
    first_stage,
    real_stage,
    saturation,
    second_stage,
    tuned,
    tuning,
)
from benchmarks.training_loop import heldout_losses, train
from benchmarks.training_methods import choose_rows, parse_asked, parse_method
from benchmarks.training_model import Start, prepare
from benchmarks.training_passes import FURTHER, pool_facts
from benchmarks.training_regime import FULL, REGIMES, Regime
from benchmarks.training_report import write_report
from stages.contract.errors import ConfigurationError, DataError

log = logging.getLogger("benchmarks.training")

LINES = RESULTS / "training.jsonl"


def perform(run: Run) -> dict[str, Any]:
    """Select, train, and give the run's line."""
    start, regime = _start(run.regime), run.regime
    pool = start.pool(regime, run.seed)
    facts = pool_facts(start, regime, run.seed, run.further)
    chosen = choose_rows(parse_method(run.method), run.budget, pool, facts, regime, run.seed)
    model = start.learner()
    trace = train(
        model,
        chosen.course,
        regime,
        rate=regime.learning_rate,
        marks=regime.marks,
        evaluate=lambda: heldout_losses(model, start.heldout, bfloat16=regime.bfloat16),
    )
    return {
        "key": run.key,
        "method": run.method,
        "budget": run.budget,
        "seed": run.seed,
        "regime": regime.facts,
        "selection": {
            **chosen.facts,
            "forward_tokens": chosen.cost.forward_tokens,
            "trained_tokens": chosen.cost.trained_tokens,
            "seconds": chosen.cost.seconds,
        },
        "pool_tokens": int(pool.num_tokens.sum()),
        "start": start_losses(start, regime),
        "steps": trace.steps,
        "tokens": trace.tokens,
        "seconds": trace.seconds,
        "points": trace.points,
    }


def start_losses(start: Start, regime: Regime) -> dict[str, float]:
    """Give the held-out losses of the start model, measured once."""
    path = regime.folder / f"start-{'bfloat16' if regime.bfloat16 else 'float32'}.json"
    if not path.exists():
        losses = heldout_losses(start.model(), start.heldout, bfloat16=regime.bfloat16)
        path.write_text(json.dumps(losses), encoding="utf-8")
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found


def perform_all(runs: Iterable[Run], lines: Path, *, processes: int) -> None:
    """Make the runs that have no line yet, and append a line for each as it ends."""
    done = {line["key"] for line in read_lines(lines)}
    left = list({run.key: run for run in runs if run.key not in done}.values())
    if not left:
        log.info("all runs have their lines in %s", lines)
        return
    regime = left[0].regime
    start = _start(regime)
    start_losses(start, regime)
    estimate(left, start, processes)
    for count, (run, line) in enumerate(_results(left, processes), 1):
        if isinstance(line, Exception):
            log.info("%d/%d %s at %s: not run: %s", count, len(left), run.method, run.budget, line)
            continue
        _append(lines, line)
        last = line["points"][-1]
        log.info(
            "%d/%d %s at %s, seed %d: loss %.4f, %d steps, %d tokens, %.0f s",
            *(count, len(left), run.method, run.budget, run.seed),
            *(last["plain"], line["steps"], line["tokens"], line["seconds"]),
        )


def _results(
    runs: Sequence[Run], processes: int
) -> Iterator[tuple[Run, dict[str, Any] | ConfigurationError | DataError]]:
    """Make runs in so many processes (0: in this one), and give each as it ends."""
    if processes == 0:
        yield from ((run, _attempt(run)) for run in runs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_one_thread) as pool:
        # First what several runs share: the first pass, then each that follows it.
        list(pool.map(_measure, {run.seed: run for run in runs}.values(), repeat(())))
        for name in FURTHER:
            by_pool = {(r.seed, r.regime.key): r for r in runs if name in r.further}
            list(pool.map(_measure, by_pool.values(), repeat((name,))))
        futures = {pool.submit(_attempt, run): run for run in runs}
        yield from ((futures[future], future.result()) for future in as_completed(futures))


def _attempt(run: Run) -> dict[str, Any] | ConfigurationError | DataError:
    """Make a run; a method that cannot meet its budget says why."""
    try:
        return perform(run)
    except (ConfigurationError, DataError) as error:
        return error


def _append(path: Path, line: dict[str, Any]) -> None:
    """Add a line, after closing one that a killed run left torn."""
    torn = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n" * torn + json.dumps(line) + "\n")


def estimate(runs: Sequence[Run], start: Start, processes: int) -> float:
    """Measure the speed, and say how many minutes runs will take; give the minutes."""
    regime = runs[0].regime
    pool = start.pool(regime, runs[0].seed)
    speed = measure_speed(start, regime, pool)
    seconds = grid_seconds(
        [_share(run) * run.regime.epochs for run in runs],
        len({run.seed for run in runs}),
        len(regime.marks),
        speed=speed,
        pool_tokens=int(pool.num_tokens.sum()),
        heldout_tokens=int(start.heldout.num_tokens.sum()),
        regime=regime,
    )
    minutes = seconds / max(1, processes) / 60
    log.info(
        "%.0f tokens a second trained, %.0f passed, of one thread; %d runs of a pool of %d rows "
        "and %d tokens in %d processes: about %.0f minutes on quiet cores",
        *(speed.trained, speed.passed, len(runs), len(pool)),
        *(int(pool.num_tokens.sum()), processes, minutes),
    )
    return minutes


def _share(run: Run) -> float:
    """Guess which share of the pool a run trains on in an epoch."""
    asked = parse_asked(run.budget)
    if asked.kind == "ratio":  # of four clusters, the smallest of which has about an eighth
        return float(asked.amount) / 2
    return float(asked.amount) if asked.kind == "share" else 1.0


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the lines that are whole; a torn last one of a killed run is left out."""
    if not path.exists():
        return []
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            log.info("%s: a torn line is left out", path)
    return lines


@lru_cache(maxsize=1)
def _start(regime: Regime) -> Start:
    return prepare(regime)


def _measure(run: Run, further: Sequence[str]) -> None:
    """Measure a pool once, before runs that share it."""
    pool_facts(_start(run.regime), run.regime, run.seed, further)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    logging.basicConfig(level=logging.WARNING)


def main(arguments: Sequence[str]) -> int:
    """Run the grid that was asked for, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--regime", choices=tuple(REGIMES), default="training")
    parser.add_argument("--train", default=FULL.train)
    parser.add_argument("--heldout", default=FULL.heldout)
    parser.add_argument("--stage", choices=("1", "2", "all"), default="all")
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--budgets", nargs="+", default=[FIRST_BUDGET])
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args(arguments)
    regime = dataclasses.replace(REGIMES[args.regime], train=args.train, heldout=args.heldout)
    if not args.report:
        perform_all(tuning(regime), LINES, processes=args.processes)
    regime = tuned(regime, read_lines(LINES))
    if not args.report:
        runs = [*runs_of(args, regime), *saturation(regime)]
        perform_all(runs, LINES, processes=args.processes)
    command = "make bench-training"
    if args.regime != "training":
        command = f"python -m benchmarks.training --regime {args.regime}"
    write_report(read_lines(LINES), regime, command, args.regime)
    return 0


def runs_of(args: argparse.Namespace, regime: Regime) -> list[Run]:
    """Give the runs that the command line names."""
    if args.methods:
        seeds = range(args.seeds or 2)
        return [Run(m, b, s, regime) for s in seeds for b in args.budgets for m in args.methods]
    full = os.environ.get("BENCH") == "full"
    if regime.model:
        return real_stage(regime, range(args.seeds or (5 if full else 3)))
    first = first_stage(regime, range(args.seeds or (5 if full else 2)))
    second = second_stage(regime, range(args.seeds or (8 if full else 5)))
    return {"1": first, "2": second, "all": [*first, *second]}[args.stage]


if __name__ == "__main__":
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    sys.exit(main(sys.argv[1:]))
