"""The trainers that are measured: their programs of examples/, and how each is used wrongly."""

from dataclasses import dataclass, field

ALL = ("sample", "token", "rank")


@dataclass(frozen=True)
class Trainer:
    """A program of examples/, and what it can do.

    Attributes
    ----------
    label, program, module : str
        Its name, its file, and the module that must be installed.
    words : tuple of str
        Further words of its command line.
    objectives : tuple of str
        Those that it can compute.
    restart : str
        How it restarts inside an epoch: "start" is told the step, "checkpoint" reads its own
        checkpoint; "" if it does not.
    exported : bool
        Whether it reads an export in block order; its epochs then are all like the first.
    traps : tuple of (str, str)
        Names in `trainers_naive.TRAPS`, and what is done wrong in words.
    """

    label: str
    program: str
    module: str
    words: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ALL
    restart: str = "start"
    exported: bool = False
    traps: tuple[tuple[str, str], ...] = field(default=())


TRAINERS = (
    Trainer(
        "plain DDP",
        "ddp",
        "torch",
        traps=(
            ("ddp-ignored", "weights ignored"),
            ("ddp-local", "divided by the rank's own sum of weights"),
            ("ddp-sampler", "DistributedSampler over the rank's rows"),
        ),
    ),
    Trainer(
        "FSDP2", "fsdp2", "torch", traps=(("fsdp2-local", "divided by the rank's own weights"),)
    ),
    Trainer(
        "HF Trainer",
        "hf_trainer",
        "transformers",
        restart="checkpoint",
        traps=(("hf-rank", "the rank's rows as train_dataset"),),
    ),
    Trainer(
        "HF Trainer stock",
        "hf_trainer_stock",
        "transformers",
        objectives=("sample", "rank"),
        restart="",
        exported=True,
        traps=(("hf-times", "block order, its loss times the weight"),),
    ),
    Trainer(
        "TRL padded",
        "trl_sft",
        "trl",
        restart="checkpoint",
        traps=(
            ("trl-rank", "the rank's rows as train_dataset"),
            ("trl-ignored", "block order, weights ignored"),
        ),
    ),
    Trainer("TRL padding-free", "trl_sft", "trl", ("--padding-free",), restart="checkpoint"),
    Trainer(
        "Accelerate",
        "accelerate_loop",
        "accelerate",
        traps=(
            ("accelerate-prepare", "prepare(loader)"),
            ("accelerate-divided", "loss divided by the accumulation, as in a bare loop"),
        ),
    ),
    Trainer("DeepSpeed ZeRO-1", "deepspeed_loop", "deepspeed", ("--stage", "1")),
    Trainer(
        "DeepSpeed ZeRO-2",
        "deepspeed_loop",
        "deepspeed",
        ("--stage", "2"),
        traps=(("deepspeed-divided", "loss divided by the accumulation, as in a bare loop"),),
    ),
    Trainer("Ray Train", "ray_train", "ray", traps=(("ray-prepare", "prepare_data_loader"),)),
    Trainer(
        "Lightning",
        "lightning_loop",
        "lightning",
        restart="checkpoint",
        traps=(("lightning-sampler", "its defaults, with a loader of the rank's rows"),),
    ),
)
