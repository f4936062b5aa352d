"""A loop with Accelerate: accelerate launch or torchrun examples/accelerate_loop.py SHARDS MODEL.

Traps avoided: `prepare` of the loader cuts it a second time, `backward` divides the loss by the
accumulation, and a prepared loader that is read ahead ends the last step too early.
"""

import argparse

import torch
from accelerate import Accelerator, PartialState
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

cpu = not torch.cuda.is_available()
rank, world_size = PartialState(cpu=cpu).process_index, PartialState().num_processes
collate = evenshard.WeightCollator(evenshard.PadCollator(pad_token_id=0), args.objective)
loader = evenshard.make_loader(
    args.shards, rank, world_size, collate=collate, objective=args.objective
)
evenshard.check_start(loader, loader.plan, rank)
if rank == 0:
    print(loader.plan.agreed, flush=True)
accumulation, steps = loader.plan.accumulation, loader.plan.num_steps
accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=accumulation)
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)
model, optimizer = accelerator.prepare(model.train(), optimizer)  # not the loader
for epoch in range(args.steps_done // steps, args.epochs):
    loader.set_epoch(epoch)
    done = max(0, args.steps_done - epoch * steps)
    loader.sampler_of_shards.set_step(done)
    for window in zip(*[iter(loader)] * accumulation, strict=True):
        window = [{name: b[name].to(accelerator.device) for name in b} for b in window]
        denominator = evenshard.step_denominator(window)
        total = 0.0
        for batch in window:
            with accelerator.accumulate(model):
                logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                loss = evenshard.weighted_loss(
                    logits,
                    batch["labels"],
                    batch["loss_weight"],
                    denominator=denominator,
                    world_size=world_size,
                )
                accelerator.backward(loss * accumulation)  # which divides by it
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach()
        done += 1
        mean = accelerator.reduce(total, reduction="mean")
        accelerator.print(f"step {epoch * steps + done} loss {mean.item():.9g}", flush=True)
accelerator.end_training()
