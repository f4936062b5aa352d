"""SFTTrainer of TRL: torchrun --nproc-per-node 2 examples/trl_sft.py SHARDS MODEL [--padding-free].

Traps avoided: packing drops the weights and makes ranks unlike in length, max_length=1024 cuts
rows, weights are no column of SFTTrainer's, and it never calls model.loss_function.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

from evenshard import ShardSet, WeightedShards

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shards")
parser.add_argument("model")
parser.add_argument("--objective", default="sample", choices=("sample", "token", "rank"))
parser.add_argument("--padding-free", action="store_true", help="rows in a line, not padded")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--output", default="output")
parser.add_argument("--save-steps", type=int, default=0)
parser.add_argument("--resume", default=None, help="a checkpoint of --output")
args = parser.parse_args()


class WeightedSFTTrainer(WeightedShards, SFTTrainer):
    """Its loader, its loss and its check at the start are those of WeightedShards."""


shards = ShardSet(args.shards)
trainer = WeightedSFTTrainer(
    shards=shards,  # instead of train_dataset: the rows are rendered and cut already
    objective=args.objective,
    model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
    processing_class=AutoTokenizer.from_pretrained(args.model),
    args=SFTConfig(
        output_dir=args.output,
        max_length=None,
        packing=False,
        padding_free=args.padding_free,
        per_device_train_batch_size=shards.micro_batch,
        gradient_accumulation_steps=shards.accumulation,
        num_train_epochs=args.epochs,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,  # no clipping, as in the other examples
        bf16=torch.cuda.is_available(),
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
