"""SFTTrainer of TRL: torchrun --nproc-per-node 2 examples/trl_sft.py SHARDS MODEL [--padding-free].

Traps avoided: packing drops the weights and makes ranks unlike in length, max_length=1024 cuts
rows, weights are no column of SFTTrainer's, and it never calls model.loss_function.
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from evenshard import ShardSet, WeightedShards

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shards")
parser.add_argument("model")
parser.add_argument("--objective", default="", choices=("sample", "token", "rank"))
parser.add_argument("--padding-free", action="store_true", help="rows in a line, not padded")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--max-steps", type=int, default=-1, help="stop after so many")
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--output", default="output", help="where the model goes")
parser.add_argument("--save-steps", type=int, default=0)
parser.add_argument("--resume", default=None, help="a checkpoint of --output")
args = parser.parse_args()


class Lines(TrainerCallback):
    """A line after the check and one a step, in place of the progress bar; rank 0 prints."""

    def on_train_begin(self, args, state, control, **kwargs):
        """Say that every rank's loader was compared with the plan, which it now was."""
        if state.is_world_process_zero:
            print(trainer.plan.agreed, flush=True)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print the loss of the step."""
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.9g}", flush=True)


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
        max_steps=args.max_steps,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,  # no clipping, as in the other examples
        bf16=torch.cuda.is_available(),
        logging_steps=1,
        save_strategy="steps" if args.save_steps else "no",
        save_steps=args.save_steps or 500,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        report_to=[],
    ),
)
trainer.add_callback(Lines)
trainer.remove_callback(PrinterCallback)
trainer.train(resume_from_checkpoint=args.resume)  # compares every rank's rows with the plan first
trainer.save_model()  # on every rank; the first writes
if trainer.is_world_process_zero():
    print(f"the model is in {args.output}", flush=True)
trainer.accelerator.wait_for_everyone()
trainer.accelerator.end_training()  # ends the process group, as torch asks for
