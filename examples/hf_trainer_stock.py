"""The Trainer of transformers, not subclassed, on one file in block order.

    evenshard export SHARDS --to block --out EXPORT
    torchrun --nproc-per-node 2 examples/hf_trainer_stock.py SHARDS MODEL EXPORT

Traps avoided: a shuffle, dropped columns, and a loss by the tokens of the step. The objective
"token" needs the mixin (hf_trainer.py), and every epoch has the order of the first.
"""

import argparse

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import evenshard

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shards")
parser.add_argument("model")
parser.add_argument("export")
parser.add_argument("--objective", choices=("sample", "rank"), help="else the set's")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--max-steps", type=int, default=-1, help="stop after so many")
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--output", default="output", help="where the model goes")
args = parser.parse_args()


class Lines(TrainerCallback):
    """A line after the check and one a step, in place of the progress bar; rank 0 prints."""

    def on_train_begin(self, args, state, control, **kwargs):
        """Say that every rank's loader was compared with the plan, which it now was."""
        if state.is_world_process_zero:
            print(plan.agreed, flush=True)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print the loss of the step."""
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.9g}", flush=True)


shards = evenshard.ShardSet(args.shards)
args.objective = args.objective or shards.manifest["weights"]["objective"]
rows = load_dataset(args.export, split="train")
arguments = TrainingArguments(
    output_dir=args.output,
    per_device_train_batch_size=shards.micro_batch,
    gradient_accumulation_steps=shards.accumulation,
    train_sampling_strategy="sequential",  # block b goes to rank b % W
    remove_unused_columns=False,  # or the weights are gone
    num_train_epochs=args.epochs,
    max_steps=args.max_steps,
    learning_rate=args.lr,
    lr_scheduler_type="constant",
    max_grad_norm=0.0,  # no clipping, as in the other examples
    logging_steps=1,
    save_strategy="no",
    use_cpu=not torch.cuda.is_available(),
    disable_tqdm=True,
    report_to=[],
)
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
evenshard.set_loss(model, args.objective, arguments)  # proves that it is used
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=rows.select_columns(["row_id", "input_ids", "labels", "weight"]),
    data_collator=evenshard.WeightCollator(evenshard.PadCollator(0), args.objective),
)
plan = evenshard.Plan(shards, arguments.world_size, objective=args.objective)
evenshard.check_start(trainer.get_train_dataloader(), plan, arguments.process_index)
trainer.add_callback(Lines)
trainer.remove_callback(PrinterCallback)
trainer.train()
trainer.save_model()  # on every rank; the first writes
if trainer.is_world_process_zero():
    print(f"the model is in {args.output}", flush=True)
trainer.accelerator.wait_for_everyone()
trainer.accelerator.end_training()  # ends the process group, as torch asks for
