"""Every trainer's optimizer steps against the explicit weighted sum over their rows.

The programs of examples/ run unchanged on two gloo ranks, at learning rate 0, so that the gradient
of each step can be compared with one process that goes through the step's rows in float64. Beside
them run the traps of `trainers_naive`.

    python -m benchmarks.trainers [the labels of some trainers]
"""

import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, Figure, markdown, put_into_docs, report
from benchmarks.trainers_launch import NotRun, Record, build_deepspeed, launch, launch_ray
from benchmarks.trainers_programs import TRAINERS, Trainer
from benchmarks.trainers_reference import Reference
from benchmarks.trainers_sets import TrainingSet, make_sets, mean_lengths
from evenshard.export import export

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
NAIVE = HERE / "trainers_naive.py"
TARGET = 1e-5
EPOCHS = 2


@dataclass(frozen=True)
class Case:
    """A set, an objective, and where the run leaves what it writes."""

    data: TrainingSet
    objective: str
    out: Path


class Bench:
    """The sets, the references, and the figures so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model, self.sets = make_sets(folder)
        self.references = {one.label: Reference(one.folder, self.model) for one in self.sets}
        self.exports = {
            one.label: export(one.folder, "block", out=folder / f"{one.folder.name}-block").folder
            for one in self.sets
        }
        self.figures: list[Figure] = []
        self.not_run: list[str] = []

    def measure(self, trainer: Trainer) -> None:
        """Run a trainer in every way that it knows, and its traps."""
        if importlib.util.find_spec(trainer.module) is None:
            self.not_run.append(f"{trainer.label}: not run: no module named {trainer.module}")
            return
        cases = [
            Case(data, objective, self.folder / "runs" / f"{data.folder.name}-{objective}")
            for data in self.sets
            for objective in data.objectives
            if objective in trainer.objectives
        ]
        as_planned = []
        for case, record in self._run_cases(trainer, cases):
            reference = self.references[case.data.label]
            epochs = [0] * EPOCHS if trainer.exported else list(range(EPOCHS))
            error = reference.worst_error(record.gradients, case.objective, epochs)
            label = f"{trainer.label}, {case.data.label}, {case.objective}: gradient error"
            self.figures.append(Figure(label, error, TARGET, "lower"))
            as_planned.append(record.steps == reference.rows(epochs))
            if trainer.program == "ddp" and case.objective == "sample":
                error = reference.epoch_error(record.gradients)
                label = f"{trainer.label}, {case.data.label}: identity of the epoch, error"
                self.figures.append(Figure(label, error, TARGET, "lower"))
        if as_planned:
            label = f"{trainer.label}: rows as planned, {EPOCHS} epochs, both ranks"
            self.figures.append(Figure(label, float(all(as_planned)), 1.0, "higher"))
        if trainer.restart and as_planned:
            self._restart(trainer, cases)
        for trap, text in trainer.traps:
            self._measure_trap(trainer, trap, text)

    def _run_cases(self, trainer: Trainer, cases: Sequence[Case]) -> Iterator[tuple[Case, Record]]:
        program = EXAMPLES / f"{trainer.program}.py"
        given = [(self._words(trainer, case), case.out) for case in cases]
        records = self._run(trainer, program, given)
        yield from ((case, one) for case, one in zip(cases, records, strict=True) if one)

    def _run(
        self, trainer: Trainer, program: Path, given: Sequence[tuple[list[str], Path]]
    ) -> Iterator[Record | None]:
        """Run a program with each command line; None where it failed, and the reason is kept."""
        if trainer.module == "ray":  # starting Ray takes long: all in one
            self._tell(trainer, partial(launch_ray, program, given, self.folder / "ray.log"))
        for words, out in given:
            if trainer.module == "ray":
                yield self._tell(trainer, partial(Record.read, out))
            else:
                yield self._tell(trainer, partial(launch, program, words, out))

    def _words(self, trainer: Trainer, case: Case, *more: str) -> list[str]:
        words = [str(case.data.folder), str(self.model)]
        words += [str(self.exports[case.data.label])] if trainer.exported else []
        words += ["--objective", case.objective, "--epochs", str(EPOCHS), "--lr", "0"]
        if trainer.restart == "checkpoint" or trainer.exported:
            words += ["--output", str(case.out / "output")]
        if trainer.restart == "checkpoint":
            words += ["--save-steps", str(self._stop(case))]
        return [*words, *trainer.words, *more]

    def _stop(self, case: Case) -> int:
        """Give a step inside the second epoch."""
        return self.references[case.data.label].num_steps * 3 // 2

    def _restart(self, trainer: Trainer, cases: Sequence[Case]) -> None:
        """Go on inside the second epoch, and compare the rows that are still to come."""
        case = next(case for case in cases if case.data.label == "K = 3")
        stop = self._stop(case)
        more = ("--steps-done", str(stop))
        if trainer.restart == "checkpoint":
            found = [
                *case.out.glob(f"output/checkpoint-{stop}"),
                *case.out.glob(f"output/*{stop}.ckpt"),
            ]
            more = ("--resume", str(found[0]))
        words, out = self._words(trainer, case, *more), self.folder / "runs" / "restarted"
        [record] = self._run(trainer, EXAMPLES / f"{trainer.program}.py", [(words, out)])
        if record is not None:
            rows = self.references[case.data.label].rows(list(range(EPOCHS)))
            same = record.steps == [steps[stop:] for steps in rows]
            total = EPOCHS * self.references[case.data.label].num_steps
            label = f"{trainer.label}: the same rows after a restart at step {stop} of {total}"
            self.figures.append(Figure(label, float(same), 1.0, "higher"))

    def _measure_trap(self, trainer: Trainer, trap: str, text: str) -> None:
        data = self.sets[0]
        out = self.folder / "runs" / trap
        words = [trap, str(data.folder), str(self.model), "--output", str(out / "output")]
        words += ["--export", str(self.exports[data.label])]
        [record] = self._run(trainer, NAIVE, [(words, out)])
        if record is None:
            return
        reference = self.references[data.label]
        objectives = ("sample", "rank") if trap == "hf-times" else ("sample",)
        for objective in objectives:
            error = reference.worst_error(record.gradients, objective, [0])
            label = f"naive {trainer.label}, {data.label}, {objective}: {text}: gradient error"
            self.figures.append(Figure(label, error, None, "lower"))
        planned = record.steps == reference.rows([0])
        label = f"naive {trainer.label}, {text}: rows as planned"
        self.figures.append(Figure(label, float(planned), None, "higher"))

    def _tell(self, trainer: Trainer, run: Any) -> Any:
        """Call a run; where it fails, say why, and give None."""
        try:
            return run()
        except NotRun as error:
            self.not_run.append(f"{trainer.label}: not run: {error}")
            print(self.not_run[-1], flush=True)
            return None


def main(labels: Sequence[str]) -> int:
    """Measure all trainers, or the ones that are named; exit 1 if one of them failed."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "RAY_TRAIN_V2_ENABLED": "1"}
    chosen = [trainer for trainer in TRAINERS if not labels or trainer.label in labels]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_EXTENSIONS_DIR"] = str(Path(folder, "extensions"))
        if any(trainer.module == "deepspeed" for trainer in chosen):
            build_deepspeed()
        bench = Bench(Path(folder))
        for one in bench.sets:
            lengths = mean_lengths(one.folder)
            label = f"{one.label}: mean tokens of the longest cluster over those of the shortest"
            bench.figures.append(Figure(label, lengths[-1] / lengths[0], None, "higher"))
        for trainer in chosen:
            began = time.monotonic()
            bench.measure(trainer)
            print(f"{trainer.label} {time.monotonic() - began:.0f} s", flush=True)
    command = "python -m benchmarks.trainers"
    if labels:
        print(markdown(command, bench.figures), *bench.not_run, sep="\n")
    else:
        report("trainers", command, bench.figures)
        _add_not_run(command, bench)
    failed = any("not run: no module" not in line for line in bench.not_run)
    return int(failed or any(figure.met is False for figure in bench.figures))


def _add_not_run(command: str, bench: Bench) -> None:
    """Put lines, never numbers, for what was not run."""
    if not bench.not_run:
        return
    print(*bench.not_run, sep="\n")
    path = RESULTS / "trainers.json"
    result = {**json.loads(path.read_text(encoding="utf-8")), "not_run": bench.not_run}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = "\n".join(f"- {line}" for line in bench.not_run)
    put_into_docs("trainers", f"{markdown(command, bench.figures)}\n\n{lines}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
