"""Ray Train: python examples/ray_train.py SHARDS MODEL --workers 2.

Traps avoided: `prepare_data_loader` adds a DistributedSampler, and shards given as `datasets=` are
split anew by Ray Data; each worker opens its own shard instead.
"""

import argparse
from pathlib import Path

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer
from transformers import AutoModelForCausalLM

import evenshard


def train_loop(config):
    """Train on one worker; Ray has set up its process group."""
    context = ray.train.get_context()
    rank, world_size = context.get_world_rank(), context.get_world_size()
    device = ray.train.torch.get_device()
    model = AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.float32)
    model = ray.train.torch.prepare_model(model.train())  # on its device, in DDP
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.0)
    collate = evenshard.WeightCollator(evenshard.PadCollator(pad_token_id=0), config["objective"])
    loader = evenshard.make_loader(
        config["shards"], rank, world_size, collate=collate, objective=config["objective"]
    )
    evenshard.check_start(loader, loader.plan, rank)
    if rank == 0:
        print(loader.plan.agreed, flush=True)
    steps = loader.plan.num_steps
    for epoch in range(config["steps_done"] // steps, config["epochs"]):
        loader.set_epoch(epoch)
        done = max(0, config["steps_done"] - epoch * steps)
        loader.sampler_of_shards.set_step(done)
        for window in zip(*[iter(loader)] * loader.plan.accumulation, strict=True):
            window = [{name: batch[name].to(device) for name in batch} for batch in window]
            denominator = evenshard.step_denominator(window)
            total = 0.0
            for batch in window:
                logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                loss = evenshard.weighted_loss(
                    logits,
                    batch["labels"],
                    batch["loss_weight"],
                    denominator=denominator,
                    world_size=world_size,
                )
                loss.backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {epoch * steps + done} loss {total.item() / world_size:.9g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--objective", choices=("sample", "token", "rank"), help="else the set's")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--steps-done", type=int, default=0, help="before a restart")
    parser.add_argument("--output", type=Path, default=Path("output"))
    args = parser.parse_args()
    stated = evenshard.ShardSet(args.shards).manifest["weights"]["objective"]
    args.objective = args.objective or stated
    # Workers run in another folder: paths must be whole, and on a disk that all nodes see.
    paths = {name: str(getattr(args, name).resolve()) for name in ("shards", "model", "output")}
    use_gpu = torch.cuda.is_available()
    TorchTrainer(
        train_loop,
        train_loop_config={**vars(args), **paths},
        scaling_config=ray.train.ScalingConfig(num_workers=args.workers, use_gpu=use_gpu),
        run_config=ray.train.RunConfig(storage_path=paths["output"]),
    ).fit()
