"""FSDP2 of torch: torchrun --nproc-per-node 2 examples/fsdp2.py SHARDS MODEL.

Traps avoided: a second cut by a DistributedSampler, and a local denominator, as in ddp.py.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM

import evenshard

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
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cuda" if cuda else "cpu", (world_size,))
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(mesh.device_type)
for layer in model.model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh).train()  # from_pretrained gives it for evaluation
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
collate = evenshard.WeightCollator(evenshard.PadCollator(pad_token_id=0), args.objective)
# Every rank of this mesh has rows of its own. With tensor or context parallelism, rank and world
# size are those of the data-parallel dimension, and its group goes to the three calls below.
loader = evenshard.make_loader(
    args.shards, rank, world_size, collate=collate, objective=args.objective
)
evenshard.check_start(loader, loader.plan, rank, mesh.get_group())
if rank == 0:
    print(loader.plan.agreed, flush=True)
steps = loader.plan.num_steps
for epoch in range(args.steps_done // steps, args.epochs):
    loader.set_epoch(epoch)
    done = max(0, args.steps_done - epoch * steps)
    loader.sampler_of_shards.set_step(done)
    for window in zip(*[iter(loader)] * loader.plan.accumulation, strict=True):
        window = [{name: batch[name].to(mesh.device_type) for name in batch} for batch in window]
        denominator = evenshard.step_denominator(window, mesh.get_group())
        total = torch.zeros((), device=mesh.device_type)
        for index, batch in enumerate(window):
            model.set_requires_gradient_sync(index + 1 == len(window))
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
        dist.all_reduce(total, group=mesh.get_group())
        if rank == 0:
            print(f"step {epoch * steps + done} loss {total.item() / world_size:.9g}", flush=True)
dist.destroy_process_group()
