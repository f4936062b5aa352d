"""DeepSpeed's engine, ZeRO 1 or 2: torchrun or deepspeed examples/deepspeed_loop.py SHARDS MODEL.

Traps avoided: `training_data` of deepspeed.initialize makes a loader that cuts the shard a second
time, and `engine.backward` divides the loss by the accumulation.
"""

import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

import evenshard

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shards")
parser.add_argument("model")
parser.add_argument("--stage", type=int, default=2, choices=(0, 1, 2))
parser.add_argument("--objective", choices=("sample", "token", "rank"), help="else the set's")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--steps-done", type=int, default=0, help="before a restart")
parser.add_argument("--local_rank", type=int, default=0, help="set by the launcher of DeepSpeed")
args = parser.parse_args()
args.objective = args.objective or evenshard.ShardSet(args.shards).manifest["weights"]["objective"]

if torch.cuda.is_available():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
collate = evenshard.WeightCollator(evenshard.PadCollator(pad_token_id=0), args.objective)
loader = evenshard.make_loader(
    args.shards, rank, world_size, collate=collate, objective=args.objective
)
evenshard.check_start(loader, loader.plan, rank)
if rank == 0:
    print(loader.plan.agreed, flush=True)
accumulation, steps = loader.plan.accumulation, loader.plan.num_steps
config = {
    "train_micro_batch_size_per_gpu": loader.plan.micro_batch,
    "gradient_accumulation_steps": accumulation,
    "zero_optimization": {"stage": args.stage},
}
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
engine, *_ = deepspeed.initialize(model=model.train(), optimizer=optimizer, config=config)
for epoch in range(args.steps_done // steps, args.epochs):
    loader.set_epoch(epoch)
    done = max(0, args.steps_done - epoch * steps)
    loader.sampler_of_shards.set_step(done)
    for window in zip(*[iter(loader)] * accumulation, strict=True):
        window = [{name: batch[name].to(engine.device) for name in batch} for batch in window]
        denominator = evenshard.step_denominator(window)
        total = 0.0
        for batch in window:
            logits = engine(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            loss = evenshard.weighted_loss(
                logits,
                batch["labels"],
                batch["loss_weight"],
                denominator=denominator,
                world_size=world_size,
            )
            engine.backward(loss * accumulation)  # which divides by it
            engine.step()  # counts the micro-batches, and steps at the last
            total += loss.detach()
        done += 1
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {epoch * steps + done} loss {total.item() / world_size:.9g}", flush=True)
dist.destroy_process_group()
