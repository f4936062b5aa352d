"""Runs a training program as it is, and keeps what its optimizer steps are taken with.

Hooks around the program record, on every rank, the rows that the model was given (by their
tokens) and, just before each optimizer step, the gradient after accumulation and reduction. The
program knows nothing of it: what is measured is what a user would run.
"""

import functools
import os
import pickle
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.optim.optimizer import register_optimizer_step_pre_hook

Rows = list[tuple[int, ...]]

LONGEST_S = 600  # after which a process ends itself, should nobody be left to end it


class Recorder:
    """What a rank did, once `install` is called.

    Attributes
    ----------
    steps : list of list of tuple of int
        Tokens of the rows of every optimizer step, in the order in which the model got them.
    gradients : list of Tensor of shape (parameters,), float64
        Of every optimizer step, in the order of the model's parameters.
    """

    def __init__(self) -> None:
        self.steps: list[Rows] = []
        self.gradients: list[torch.Tensor] = []
        self._rows: Rows = []
        self._model: Any = None

    def install(self) -> None:
        """Put the hooks around transformers' Llama, torch's optimizers and DeepSpeed's engine."""
        from transformers import AutoModelForCausalLM, LlamaModel

        load, forward = AutoModelForCausalLM.from_pretrained, LlamaModel.forward

        def kept(*args: Any, **named: Any) -> Any:
            self._model = load(*args, **named)
            return self._model

        @functools.wraps(forward)
        def seen(model: Any, *args: Any, **named: Any) -> Any:
            if torch.is_grad_enabled():
                names = ("input_ids", "attention_mask", "position_ids")[: len(args)]
                self._rows += rows_of({**dict(zip(names, args, strict=True)), **named})
            return forward(model, *args, **named)

        AutoModelForCausalLM.from_pretrained = kept
        LlamaModel.forward = seen
        if "deepspeed" in " ".join(sys.argv[:2]):
            self._watch_deepspeed()
        else:
            register_optimizer_step_pre_hook(
                lambda *ignored: self._keep(lambda parameter: parameter.grad)
            )

    def save(self, folder: Path, rank: int) -> None:
        """Write what was recorded; the gradients are the same on all ranks, so of rank 0 alone."""
        gradients = self.gradients if rank == 0 else []
        (folder / f"rank{rank}.pkl").write_bytes(pickle.dumps((self.steps, gradients)))

    def _watch_deepspeed(self) -> None:
        """Its optimizer holds parts of a flat vector; the engine puts the gradient together."""
        from deepspeed.runtime.engine import DeepSpeedEngine
        from deepspeed.utils import safe_get_full_grad

        step = DeepSpeedEngine.step

        def watched(engine: Any, *args: Any, **named: Any) -> Any:
            if engine.is_gradient_accumulation_boundary():
                self._keep(safe_get_full_grad)
            return step(engine, *args, **named)

        DeepSpeedEngine.step = watched

    def _keep(self, gradient_of: Callable[[Any], Any]) -> None:
        parts = []
        for parameter in self._model.parameters():
            gradient = gradient_of(parameter)
            if hasattr(gradient, "full_tensor"):  # FSDP2 leaves each rank its part
                gradient = gradient.full_tensor()
            parts.append(gradient.detach().flatten().double().cpu().clone())
        self.gradients.append(torch.cat(parts))
        self.steps.append(self._rows)
        self._rows = []


def rows_of(inputs: dict[str, Any]) -> Rows:
    """Take the rows out of a batch that is padded, or has them one after the other."""
    input_ids, mask = inputs["input_ids"], inputs.get("attention_mask")
    positions = inputs.get("position_ids")
    if mask is not None and mask.dim() == 2:
        lines = zip(input_ids, mask, strict=True)
        return [tuple(ids[kept.bool()].tolist()) for ids, kept in lines]
    if positions is None:
        return [tuple(ids.tolist()) for ids in input_ids]
    starts = (positions.flatten() == 0).nonzero().flatten().tolist()
    ends = [*starts[1:], input_ids.numel()]
    flat = input_ids.flatten().tolist()
    return [tuple(flat[start:end]) for start, end in zip(starts, ends, strict=True)]


def run_rank(
    rank: int, world_size: int, port: int, program: str, words: Sequence[str], out: Path
) -> None:
    """Run a program as torchrun would, in this process, and write its record."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    names |= {"LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update(MASTER_ADDR="127.0.0.1", ACCELERATE_USE_CPU="1")
    torch.set_num_threads(1)
    _begin(out / f"rank{rank}.log")
    sys.argv = [program, *words]
    recorder = Recorder()
    recorder.install()
    # torch's gloo can wait for ever in the destructor of a process group whose last collective
    # has only just ended; so no group is destroyed, and the process ends without clearing up.
    torch.distributed.destroy_process_group = lambda *ignored: None
    made = runpy.run_path(program, run_name="__main__")
    recorder.save(out, rank)
    assert made
    os._exit(0)


def run_ray(program: str, cases: Sequence[tuple[Sequence[str], Path]], log: Path) -> None:
    """Run a program of Ray Train several times; its workers record themselves."""
    import ray
    import ray.train.torch

    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    _begin(log)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=True)
    real = ray.train.torch.TorchTrainer
    for words, out in cases:
        ray.train.torch.TorchTrainer = functools.partial(_recorded_trainer, real, out)
        sys.argv = [program, *words, "--output", str(out / "ray")]
        runpy.run_path(program, run_name="__main__")
    ray.shutdown()


def _recorded_trainer(real: Any, out: Path, loop: Callable[[Any], None], **named: Any) -> Any:
    def recorded(config: dict[str, Any]) -> None:
        import ray.train

        recorder = Recorder()
        recorder.install()
        loop(config)
        recorder.save(out, ray.train.get_context().get_world_rank())

    return real(recorded, **named)


def _begin(path: Path) -> None:
    """Send what this process says, and what its libraries say, to a file; and let it end."""
    signal.alarm(LONGEST_S)
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(file, stream)
