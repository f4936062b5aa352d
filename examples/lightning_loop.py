"""Lightning: torchrun --nproc-per-node 2 examples/lightning_loop.py SHARDS MODEL.

Traps avoided: the Trainer puts a DistributedSampler into loaders (use_distributed_sampler=True),
and automatic optimization divides by the accumulation and never sees a whole step.
"""

import argparse
import os
from contextlib import nullcontext

import lightning
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

import evenshard

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shards")
parser.add_argument("model")
parser.add_argument("--objective", default="sample", choices=("sample", "token", "rank"))
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=1e-5)
args = parser.parse_args()


class Weighted(lightning.LightningModule):
    """One batch of it is all micro-batches of an optimizer step."""

    automatic_optimization = False

    def __init__(self):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)

    def setup(self, stage):
        """Make this rank's loader, once the ranks know of each other."""
        collate = evenshard.WeightCollator(evenshard.PadCollator(pad_token_id=0), args.objective)
        rank, world_size = self.global_rank, self.trainer.world_size
        self.loader = evenshard.make_loader(
            args.shards, rank, world_size, collate=collate, objective=args.objective
        )
        evenshard.check_start(self.loader, self.loader.plan, rank)

    def train_dataloader(self):
        """Give whole steps, of this epoch; the Trainer asks anew for each."""
        self.loader.set_epoch(self.current_epoch)
        return list(zip(*[iter(self.loader)] * self.loader.plan.accumulation, strict=True))

    def training_step(self, window, index):
        """Train one optimizer step."""
        denominator = evenshard.step_denominator(window)
        total = 0.0
        for place, batch in enumerate(window):
            last = place + 1 == len(window)
            with nullcontext() if last else self.trainer.strategy.block_backward_sync():
                logits = self.model(batch["input_ids"], attention_mask=batch["attention_mask"])
