"""The mixin that lets `transformers.Trainer` and `trl.SFTTrainer` train on weighted shards.

    class WeightedTrainer(WeightedShards, SFTTrainer): ...

    trainer = WeightedTrainer(shards="data/curated/mine", model=model, args=args)
    trainer.train()

Both trainers cut the rows once more among the ranks, shuffle them, drop columns that the model
does not take, and divide the loss by the number of tokens. The mixin brings its own loader, which
follows the plan, and its own loss; evaluation, logging and checkpoints stay as they are.
Longer than other files, since the constructor spells out what it passes on, and each setting that
would undo the plan is looked for.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped,unused-ignore]
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, default_data_collator
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from evenshard.collate import Collator, PadCollator, WeightCollator
from evenshard.dataset import SetRows
from evenshard.loss import balance_loss, step_denominator, weighted_loss
from evenshard.plan import Plan
from evenshard.resume import check_resume, keep_order
from evenshard.sampler import ShardSampler
from evenshard.shards import ShardError, StrPath
from evenshard.shardset import ShardSet
from evenshard.startup import check_start


class WeightedShards:
    """Put before `Trainer` or `SFTTrainer` in a class statement.

    Parameters
    ----------
    model, args
        As for the trainer. `per_device_train_batch_size` is the micro-batch of the plan, and
        `gradient_accumulation_steps` must be a multiple of the plan's.
    shards : path or ShardSet
        The folder of shards, the same on every rank. It takes the place of `train_dataset`.
    objective : {"sample", "token", "rank"}, optional
        What the weights multiply; by default what the folder's manifest says.
    data_collator
        As for the trainer. For training it is wrapped in a WeightCollator, and the default ones
        of `Trainer`, which cannot pad labels, are replaced by a PadCollator.
    train_dataset
        Must not be given.
    model_init, peft_config, quantization_config
        For those trainers that take them.
    eval_dataset, processing_class, compute_metrics, callbacks, optimizers, \
optimizer_cls_and_kwargs, preprocess_logits_for_metrics
        As for the trainer.

    Attributes
    ----------
    plan : Plan
        Which row is trained when and where.
    last_row_ids : Tensor of shape (rows,), int64
        The rows of this rank in the optimizer step at hand, -1 for padding.

    Raises
    ------
    ShardError
        If a setting would cut, reorder, cut off or unweigh the rows; the message names it.
    """

    loss_is_scaled_for_ga = True  # read by Trainer: the loss is not divided by A again

    accelerator: Any
    args: Any
    current_gradient_accumulation_steps: int
    data_collator: Any
    model: Any
    model_accepts_loss_kwargs: bool
    processing_class: Any
    state: Any

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *,
        shards: StrPath | ShardSet,
        objective: str = "",
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Any = None,
        compute_metrics: Any = None,
        callbacks: Any = None,
        optimizers: Any = None,
        optimizer_cls_and_kwargs: Any = None,
        preprocess_logits_for_metrics: Any = None,
        peft_config: Any = None,
        quantization_config: Any = None,
    ) -> None:
        if train_dataset is not None:
            raise ShardError(
                f"train_dataset={type(train_dataset).__name__} must not be given beside shards; "
                f"the trainer would cut it again. The mixin reads {shards} itself"
            )
        self.shards = shards if isinstance(shards, ShardSet) else ShardSet(shards)
        if args is not None:
            _check_settings(args, self.shards)
        self._is_sft = any(parent.__module__.startswith("trl.") for parent in type(self).__mro__)
        given = {
            "model": model,
            "args": args,
            "data_collator": data_collator,
            "eval_dataset": eval_dataset,
            "processing_class": processing_class,
            "model_init": model_init,
            "compute_metrics": compute_metrics,
            "callbacks": callbacks,
            "optimizers": optimizers,
            "optimizer_cls_and_kwargs": optimizer_cls_and_kwargs,
            "preprocess_logits_for_metrics": preprocess_logits_for_metrics,
            "peft_config": peft_config,
            "quantization_config": quantization_config,
        }
        rows = SetRows(self.shards)
        stock: Any = super()
        stock.__init__(
            train_dataset=_placeholder() if self._is_sft else rows,
            **{name: value for name, value in given.items() if value is not None},
        )
        _check_settings(self.args, self.shards)  # defaults of the trainer are settings too
        _check_parallelism(self.accelerator)
        self.train_dataset = rows
        self.last_row_ids = torch.empty(0, dtype=torch.int64)
        self.plan = _make_plan(self.shards, self.args, self.accelerator.num_processes, objective)

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train as the trainer does; a checkpoint whose steps are other rows is refused."""
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        if checkpoint:
            check_resume(Path(checkpoint), self.plan, self.args.gradient_accumulation_steps)
        stock: Any = super()
        return stock.train(
            resume_from_checkpoint, trial=trial, ignore_keys_for_eval=ignore_keys_for_eval
        )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save what the trainer saves, and which rows the steps were made of."""
        stock: Any = super()
        stock._save_checkpoint(model, trial)
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        folder = Path(stock._get_output_dir(trial=trial)) / name
        if self.args.should_save and folder.is_dir():  # it keeps a number of the last ones
            keep_order(folder, self.plan, self.args.gradient_accumulation_steps)

    def get_train_dataloader(self) -> "DataLoader[Any]":
        """Make this rank's loader, which nothing shards again, and check all ranks' against it."""
        args, rank = self.args, self.accelerator.process_index
        self.train_dataset.open(self.plan.workers_of(rank))  # loader workers share what is open
        loader = DataLoader(
            self.train_dataset,
            batch_sampler=ShardSampler(self.plan, rank),
            collate_fn=WeightCollator(
                self._inner_collator(), self.plan.objective, keep_row_ids=True
            ),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )
        prepared: DataLoader[Any] = prepare_data_loader(
            loader,
            device=self.accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=True,
            non_blocking=self.accelerator.non_blocking,
        )
        check_start(prepared, self.plan, rank)
        return prepared

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Give the weighted loss of a training batch; an evaluation batch has the stock one."""
        loss_weight = inputs.pop("loss_weight", None)
        stock: Any = super()
        if loss_weight is None or num_items_in_batch is None:
            if self.model.training:
                raise ShardError(
                    "a training batch has no loss_weight; do not override get_train_dataloader "
                    "or get_batch_samples beside WeightedShards"
                )
            return stock.compute_loss(
                model, inputs, return_outputs, num_items_in_batch=num_items_in_batch
            )
        num_ranks = self.accelerator.num_processes
        if self._is_sft:
            # The stock loss fills the metrics; the hook keeps its forward pass for ours.
            kept: list[Any] = []
            hook = model.register_forward_hook(lambda module, args, output: kept.append(output))
            try:
                stock.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            finally:
                hook.remove()
            outputs = kept[0]
            total = -(loss_weight[:, 1:] * outputs.log_probs.float()).sum()
            loss = total * num_ranks / num_items_in_batch
        else:
            passed = {name: inputs[name] for name in inputs if name != "labels"}
            if self.model_accepts_loss_kwargs:
                # A cache is of no use, and hides from attention where padding-free rows begin.
                passed["use_cache"] = False
            outputs = model(**passed)
            loss = weighted_loss(
                outputs.logits,
                inputs["labels"],
                loss_weight,
                denominator=num_items_in_batch,
                world_size=num_ranks,
            )
        balance = balance_loss(self.model, outputs)
        if balance is not None:
            loss = loss + balance / self.current_gradient_accumulation_steps
        return (loss, outputs) if return_outputs else loss

    def _get_num_items_in_batch(
        self, batch_samples: Sequence[dict[str, Any]], device: torch.device
    ) -> Tensor | int | None:
        """Give the denominator of the step, once for all its micro-batches."""
        if not batch_samples or "loss_denominator" not in batch_samples[0]:
            stock: Any = super()
            count: Tensor | int | None = stock._get_num_items_in_batch(batch_samples, device)
            return count
        denominator = step_denominator(batch_samples)
        self.last_row_ids = torch.cat([batch.pop("row_id") for batch in batch_samples])
        for batch in batch_samples:
            del batch["loss_denominator"]  # the model must not see it
        return denominator

    def _prepare_inputs(self, inputs: dict[str, Any]) -> Mapping[str, Any]:
        """Keep the weights in float32: DeepSpeed turns all numbers into the model's type."""
        loss_weight = inputs.pop("loss_weight", None)
        stock: Any = super()
        prepared: dict[str, Any] = stock._prepare_inputs(inputs)
        if loss_weight is not None:
            prepared["loss_weight"] = loss_weight.to(self.args.device)
        return prepared

    def _inner_collator(self) -> Collator:
        collator: Collator = self.data_collator
        if collator is default_data_collator or type(collator) is DataCollatorWithPadding:
            pad = getattr(self.processing_class, "pad_token_id", None)
            pad = self.model.config.get_text_config().pad_token_id if pad is None else pad
            return PadCollator(0 if pad is None else pad)
        return collator


def _placeholder() -> Any:
    """Make the data set that `SFTTrainer` wants to see; no row of it is trained."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [[0, 0]], "labels": [[0, 0]]})


_UNUSABLE: Sequence[tuple[str, tuple[Any, ...], Any]] = (
    # setting, values that cannot be used, one that can
    ("packing", (True,), False),
    ("train_sampling_strategy", ("group_by_length", "batch_rebalance"), "sequential"),
    ("group_by_length", (True,), False),
    ("auto_find_batch_size", (True,), False),
    ("ignore_data_skip", (True,), False),  # a resume would begin the epoch again
    ("loss_type", ("dft",), "nll"),
    ("accelerator_config.dispatch_batches", (True,), None),
    ("accelerator_config.split_batches", (True,), False),
)


def _check_settings(args: Any, shards: ShardSet) -> None:
    for name, values, remedy in _UNUSABLE:
        value = args
        for part in name.split("."):
            value = getattr(value, part, None)
        if value in values:
            raise ShardError(
                f"{name}={value!r} would change which rows are trained or what they weigh; set it "
                f"to {remedy!r}"
            )
    if args.label_smoothing_factor:
        raise ShardError(
            f"label_smoothing_factor={args.label_smoothing_factor} must be 0 with weighted shards"
        )
    if args.n_gpu > 1:
        raise ShardError(f"n_gpu={args.n_gpu} must be <= 1; start one process a GPU with torchrun")
    most, longest = getattr(args, "max_length", None), int(shards.num_tokens.max())
    if most is not None and most < longest:
        raise ShardError(
            f"max_length={most} must be >= {longest}, the longest row of {shards.folder}; set it "
            f"to None: rows are cut when they are curated (tokens.max_length)"
        )


def _check_parallelism(accelerator: Any) -> None:
    config = getattr(accelerator, "parallelism_config", None)
    for name in ("tp_size", "cp_size", "sp_size"):
        size = getattr(config, name, 1)
        if size > 1:
            raise ShardError(
                f"parallelism_config.{name}={size} must be 1: every rank reads its own rows"
            )


def _make_plan(shards: ShardSet, args: Any, num_ranks: int, objective: str) -> Plan:
    micro_batch = args.per_device_train_batch_size
    try:
        plan = Plan(shards, num_ranks, micro_batch, objective=objective)
    except ShardError as error:
        raise ShardError(
            f"per_device_train_batch_size={micro_batch} on {num_ranks} ranks: {error}"
        ) from None
    if args.gradient_accumulation_steps % plan.accumulation:
        raise ShardError(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps} must be a multiple of "
            f"{plan.accumulation}, the micro-batches of {micro_batch} rows that {num_ranks} ranks "
            f"need for one step of {shards.folder}"
        )
    return plan
