"""The Trainer of transformers: torchrun --nproc-per-node 2 examples/hf_trainer.py SHARDS MODEL.

Traps avoided: the stock Trainer cuts a rank's rows a second time and shuffles them, drops the
weights as an unused column, and divides by the tokens of the step, so that long rows weigh more.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

from evenshard import ShardSet, WeightedShards

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shards")
parser.add_argument("model")
parser.add_argument("--objective", default="sample", choices=("sample", "token", "rank"))
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--output", default="output")
parser.add_argument("--save-steps", type=int, default=0)
parser.add_argument("--resume", default=None, help="a checkpoint of --output")
args = parser.parse_args()


class WeightedTrainer(WeightedShards, Trainer):
    """Its loader, its loss and its check at the start are those of WeightedShards."""


shards = ShardSet(args.shards)
trainer = WeightedTrainer(
    shards=shards,
    objective=args.objective,
    model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(args.model),
    args=TrainingArguments(
        output_dir=args.output,
        # On as many ranks as there are shards; on others the mixin says which numbers work.
        per_device_train_batch_size=shards.micro_batch,
        gradient_accumulation_steps=shards.accumulation,
        num_train_epochs=args.epochs,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,  # no clipping, as in the other examples
        logging_steps=1,
        save_strategy="steps" if args.save_steps else "no",
        save_steps=args.save_steps or 500,
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
    ),
)
trainer.train(resume_from_checkpoint=args.resume)  # compares every rank's rows with the plan first
if trainer.is_world_process_zero():
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(f"step {entry['step']} loss {entry['loss']:.9g}", flush=True)
trainer.accelerator.wait_for_everyone()
trainer.accelerator.end_training()  # ends the process group, as torch asks for
