"""The traps: what a trainer computes when it is used as its documentation shows, without evenshard.

    torchrun --nproc-per-node 2 benchmarks/trainers_naive.py TRAP SHARDS MODEL

Each trap is a program that runs without a word of complaint. They are measured beside the examples.
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM

import evenshard

MICRO_BATCH = ACCUMULATION = 2  # of the sets of the benchmark


def load(args: argparse.Namespace) -> Any:
    return AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).train()


def collator() -> Any:
    return evenshard.WeightCollator(evenshard.PadCollator(0), "token")  # loss_weight is w


def own_rows(args: argparse.Namespace, rank: int) -> Any:
    """Give the rows of this rank's shard, as a trainer is given a data set."""
    return evenshard.load_shard(args.shards, rank)


def token_losses(model: Any, batch: dict[str, Any]) -> Any:
    """Give the loss of every token by torch's own cross entropy, 0 where none is trained."""
    logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    loss = torch.nn.functional.cross_entropy
    return loss(logits.transpose(1, 2), targets, reduction="none")


def unweighted(model: Any, batch: dict[str, Any]) -> Any:
    """Give the stock loss: the mean over the tokens of the micro-batch."""
    return token_losses(model, batch).sum() / (batch["labels"][:, 1:] != -100).sum()


def locally_weighted(model: Any, batch: dict[str, Any]) -> Any:
    """Divide by the rank's own sum of weights, so that a constant weight cancels."""
    weights = batch["loss_weight"][:, 1:]
    return (weights * token_losses(model, batch)).sum() / weights.sum()


def mean_of_rows(model: Any, batch: dict[str, Any]) -> Any:
    """Weigh as the objective "sample" asks for, right but for what the trainer does to it."""
    weights, targets = batch["loss_weight"][:, 1:], batch["labels"][:, 1:] != -100
    rows = (weights * token_losses(model, batch)).sum(1) / targets.sum(1)
    return rows.mean()


def ddp(args: argparse.Namespace, loss: Any, *, sampler: bool = False) -> None:
    """Train in DDP, with the plan's rows or with a DistributedSampler over the rank's."""
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if sampler:
        rows = own_rows(args, rank)
        loader: Any = DataLoader(
            rows,
            batch_size=MICRO_BATCH,
            sampler=DistributedSampler(rows, shuffle=False),
            collate_fn=collator(),
        )
    else:
        loader = evenshard.make_loader(args.shards, rank, world_size, collate=collator())
    model = DistributedDataParallel(load(args))
    train(model, torch.optim.SGD(model.parameters(), lr=args.lr), loader, loss)
    dist.destroy_process_group()


def train(model: Any, optimizer: Any, loader: Any, loss: Any) -> None:
    for number, batch in enumerate(loader, 1):
        (loss(model, batch) / ACCUMULATION).backward()
        if number % ACCUMULATION == 0:
            optimizer.step()
            optimizer.zero_grad()


def fsdp2(args: argparse.Namespace) -> None:
    """Train in FSDP2 with the local denominator."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    loader = evenshard.make_loader(
        args.shards, dist.get_rank(), dist.get_world_size(), collate=collator()
    )
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = fully_shard(load(args), mesh=mesh)
    train(model, torch.optim.SGD(model.parameters(), lr=args.lr), loader, locally_weighted)
    dist.destroy_process_group()


def accelerate(args: argparse.Namespace, *, prepare: bool) -> None:
    """Give Accelerate the loader to prepare, or forget that it divides by the accumulation."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    rank, world_size = accelerator.process_index, accelerator.num_processes
    loader: Any = evenshard.make_loader(args.shards, rank, world_size, collate=collator())
    model = load(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = accelerator.prepare(loader) if prepare else loader
    for batch in loader:
        with accelerator.accumulate(model):
            loss = mean_of_rows(model, batch)
            accelerator.backward(loss if prepare else loss / ACCUMULATION)
            optimizer.step()
            optimizer.zero_grad()


def deepspeed(args: argparse.Namespace) -> None:
    """Divide the loss by the accumulation, as the bare loop does; so does the engine."""
    import deepspeed as library

    library.init_distributed("gloo")
    model = load(args)
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "zero_optimization": {"stage": 2},
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    engine, *_ = library.initialize(model=model, optimizer=optimizer, config=config)
    loader = evenshard.make_loader(
        args.shards, dist.get_rank(), dist.get_world_size(), collate=collator()
    )
    for batch in loader:
        engine.backward(mean_of_rows(engine, batch) / ACCUMULATION)
        engine.step()
    dist.destroy_process_group()


def trainer(args: argparse.Namespace, library: str, data: str) -> None:
    """Give a stock trainer the rank's rows, or the set in block order with its loss weighted."""
    from datasets import load_dataset
    from transformers import Trainer, TrainingArguments

    rank = int(os.environ["RANK"])
    if data == "rank":
        name = f"worker-{rank:05d}-of-{int(os.environ['WORLD_SIZE']):05d}.parquet"
        file = os.path.join(args.shards, name)
        rows = load_dataset("parquet", data_files=file, split="train")
    else:
        rows = load_dataset(args.export, split="train")
    rows = rows.select_columns(["input_ids", "labels", "weight"])
    given: dict[str, Any] = {
        "output_dir": args.output,
        "per_device_train_batch_size": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "num_train_epochs": 1,
        "learning_rate": args.lr,
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": [],
    }
    if data != "rank":
        given |= {"train_sampling_strategy": "sequential", "remove_unused_columns": False}
    if library == "trl":
        from transformers import AutoTokenizer
        from trl import SFTConfig, SFTTrainer

        arguments = SFTConfig(**given, max_length=None, bf16=False)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        SFTTrainer(
            model=load(args), args=arguments, train_dataset=rows, processing_class=tokenizer
        ).train()
        return

    class Multiplied(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            weight = inputs.pop("loss_weight").amax()  # one for a micro-batch, since it is pinned
            inputs.pop("loss_denominator")
            return super().compute_loss(model, inputs, *rest, **named) * weight

    stock = Trainer if data == "rank" else Multiplied
    collate = evenshard.PadCollator(0) if data == "rank" else collator()
    arguments = TrainingArguments(**given)
    stock(model=load(args), args=arguments, train_dataset=rows, data_collator=collate).train()


def ray(args: argparse.Namespace) -> None:
    """Let Ray prepare the loader of a rank's rows."""
    import ray.train
    import ray.train.torch

    def loop(config: dict[str, Any]) -> None:
        rows = evenshard.load_shard(config["shards"], ray.train.get_context().get_world_rank())
        collate = evenshard.WeightCollator(evenshard.PadCollator(0), "token")
        loader: Any = DataLoader(rows, batch_size=MICRO_BATCH, collate_fn=collate)
        loader = ray.train.torch.prepare_data_loader(loader)
        loaded = AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.float32)
        model = ray.train.torch.prepare_model(loaded)
        train(model, torch.optim.SGD(model.parameters(), lr=config["lr"]), loader, mean_of_rows)

    ray.train.torch.TorchTrainer(
        loop,
        train_loop_config=vars(args),
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=args.output),
    ).fit()


def lightning(args: argparse.Namespace) -> None:
    """Give Lightning a loader of the rank's rows, with its defaults."""
    import lightning as library

    class Plain(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = load(args)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=args.lr)

        def train_dataloader(self) -> Any:
            rows = own_rows(args, self.global_rank)
            return DataLoader(rows, batch_size=MICRO_BATCH, collate_fn=collator())

        def training_step(self, batch: dict[str, Any], index: int) -> Any:
            return mean_of_rows(self.model, batch)

    library.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=1,
        accumulate_grad_batches=ACCUMULATION,
        logger=False,
        enable_checkpointing=False,
    ).fit(Plain())


TRAPS = {
    "ddp-ignored": lambda args: ddp(args, unweighted),
    "ddp-local": lambda args: ddp(args, locally_weighted),
    "ddp-sampler": lambda args: ddp(args, mean_of_rows, sampler=True),
    "fsdp2-local": fsdp2,
    "accelerate-prepare": lambda args: accelerate(args, prepare=True),
    "accelerate-divided": lambda args: accelerate(args, prepare=False),
    "deepspeed-divided": deepspeed,
    "hf-rank": lambda args: trainer(args, "hf", "rank"),
    "hf-times": lambda args: trainer(args, "hf", "block"),
    "trl-rank": lambda args: trainer(args, "trl", "rank"),
    "trl-ignored": lambda args: trainer(args, "trl", "block"),
    "ray-prepare": ray,
    "lightning-sampler": lightning,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trap", choices=TRAPS)
    parser.add_argument("shards")
    parser.add_argument("model")
    parser.add_argument("--export", default="")
    parser.add_argument("--lr", type=float, default=0.0)
    parser.add_argument("--output", default="output")
    chosen = parser.parse_args()
    TRAPS[chosen.trap](chosen)
