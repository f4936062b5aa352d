"""Lightning: torchrun --nproc-per-node 2 examples/lightning_loop.py SHARDS MODEL.

Traps avoided: the Trainer puts a DistributedSampler into loaders (use_distributed_sampler=True),
and automatic optimization divides by the accumulation and never sees a whole step.
"""

import argparse
import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from transformers import AutoModelForCausalLM

import evenshard


class Steps:
    """A rank's loader by whole optimizer steps; its state goes into Lightning's checkpoints."""

    def __init__(self, loader, module):
        self.loader, self.module, self.done = loader, module, 0

    def __len__(self):
        return self.loader.plan.num_steps

    def __iter__(self):
        self.loader.set_epoch(self.module.current_epoch)
        self.done = self.loader.sampler_of_shards.begin // self.loader.plan.accumulation
        for window in zip(*[iter(self.loader)] * self.loader.plan.accumulation, strict=True):
            self.done += 1
            yield window

    def state_dict(self):
        """Give the position after the step that is handed out."""
        return self.loader.sampler_of_shards.state_dict(self.done)

    def load_state_dict(self, state):
        """Go on where a checkpoint stands."""
        self.loader.sampler_of_shards.load_state_dict(state)


class Weighted(lightning.LightningModule):
    """Trains one optimizer step a batch."""

    def __init__(self, args):
        super().__init__()
        self.args, self.automatic_optimization = args, False
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).train()

    def configure_optimizers(self):
        """Give the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, weight_decay=0.0)

    def train_dataloader(self):
        """Make this rank's loader; by now the ranks know of each other."""
        rank, world_size, objective = self.global_rank, self.trainer.world_size, self.args.objective
        collate = evenshard.WeightCollator(evenshard.PadCollator(pad_token_id=0), objective)
        loader = evenshard.make_loader(
            self.args.shards, rank, world_size, collate=collate, objective=objective
        )
        evenshard.check_start(loader, loader.plan, rank)
        if rank == 0:
            print(loader.plan.agreed, flush=True)
        return Steps(loader, self)

    def training_step(self, window, index):
        """Accumulate the gradient of one optimizer step, and take it."""
        denominator = evenshard.step_denominator(window)
        total = 0.0
        for batch in window:
            logits = self.model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            loss = evenshard.weighted_loss(
                logits,
                batch["labels"],
                batch["loss_weight"],
                denominator=denominator,
                world_size=self.trainer.world_size,
            )
            self.manual_backward(loss)
            total += loss.detach()
        self.optimizers().step()
        self.optimizers().zero_grad()
        mean = self.trainer.strategy.reduce(total, reduce_op="mean")
        if self.global_rank == 0:
            print(f"step {self.global_step} loss {mean.item():.9g}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards")
    parser.add_argument("model")
    parser.add_argument("--objective", choices=("sample", "token", "rank"), help="else the set's")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--output", default="output")
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--resume", default=None, help="a checkpoint of --output")
    args = parser.parse_args()
    stated = evenshard.ShardSet(args.shards).manifest["weights"]["objective"]
    args.objective = args.objective or stated
    saving = ModelCheckpoint(args.output, every_n_train_steps=args.save_steps, save_top_k=-1)
    lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),  # of this node; torchrun says them
        num_nodes=int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"]),
        use_distributed_sampler=False,
        max_epochs=args.epochs,
        logger=False,
        callbacks=[saving] if args.save_steps else [],
        enable_checkpointing=bool(args.save_steps),
    ).fit(Weighted(args), ckpt_path=args.resume)
