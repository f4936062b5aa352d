"""Plain torch DDP: torchrun --nproc-per-node 2 examples/ddp.py SHARDS MODEL.

Traps avoided: a DistributedSampler would cut each shard a second time, and a loss divided by the
rank's own sum of weights would cancel them.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM

import evenshard


def train_step(model, window, world_size):
    """Accumulate the gradient of one optimizer step, and give this rank's part of its loss."""
    denominator = evenshard.step_denominator(window)  # of the step, over all ranks
    total = 0.0
    for index, batch in enumerate(window):
        model.require_backward_grad_sync = index + 1 == len(window)
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = evenshard.weighted_loss(
            logits,
            batch["labels"],
            batch["loss_weight"],
            denominator=denominator,
            world_size=world_size,
        )
        loss.backward()  # not divided by len(window): the denominator is that of the step
        total += loss.detach()
    return total


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shards")
parser.add_argument("model")
parser.add_argument("--objective", choices=("sample", "token", "rank"), help="else the set's")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--steps-done", type=int, default=0, help="before a restart")
args = parser.parse_args()
args.objective = args.objective or evenshard.ShardSet(args.shards).manifest["weights"]["objective"]

cuda = torch.cuda.is_available()
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # before check_start gathers over NCCL
dist.init_process_group("nccl" if cuda else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda" if cuda else "cpu")
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(device)
collate = evenshard.WeightCollator(evenshard.PadCollator(pad_token_id=0), args.objective)
# The loader reads this rank's rows in their order: no sampler and no shuffle around it.
loader = evenshard.make_loader(
    args.shards, rank, world_size, collate=collate, objective=args.objective
)
evenshard.check_start(loader, loader.plan, rank)
if rank == 0:
    print(loader.plan.agreed, flush=True)
model = DistributedDataParallel(model.train())  # from_pretrained gives it for evaluation
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
steps = loader.plan.num_steps
for epoch in range(args.steps_done // steps, args.epochs):
    loader.set_epoch(epoch)
    done = max(0, args.steps_done - epoch * steps)
    loader.sampler_of_shards.set_step(done)
    for window in zip(*[iter(loader)] * loader.plan.accumulation, strict=True):
        window = [{name: batch[name].to(device) for name in batch} for batch in window]
        loss = train_step(model, window, world_size)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        dist.all_reduce(loss)
        if rank == 0:
            print(f"step {epoch * steps + done} loss {loss.item() / world_size:.9g}", flush=True)
dist.destroy_process_group()
