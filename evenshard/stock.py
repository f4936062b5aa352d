"""The weighted loss of a stock `transformers.Trainer`, as its model's `loss_function`.

    set_loss(model, "sample", args)

A stock Trainer can lose the weights in many ways, and says nothing of any: each is looked for.
Longer than other files, for the words.
"""

from dataclasses import dataclass, replace
from typing import Any

from evenshard.loss import balance_loss, token_losses, weighted_loss  # says how to get torch
from evenshard.shards import IGNORED_LABEL, OBJECTIVES, ShardError

# isort: split
import torch
from torch import Tensor


@dataclass(frozen=True)
class StockLoss:
    """What `make_loss` gives: a `model.loss_function` for a stock `transformers.Trainer`.

    Parameters
    ----------
    denominator, batch_denominator : float
        D of a whole step, and `loss_denominator` of a full micro-batch: its rows, or 1 for "rank".
    objective : {"sample", "rank"}
        That of the loss, and of the WeightCollator of the batches.
    is_proof : bool, default=False
        Whether batches without gradients are weighed too, as `set_loss` needs it.
    """

    denominator: float
    objective: str
    batch_denominator: float
    is_proof: bool = False

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        vocab_size: int = 0,
        num_items_in_batch: Tensor | int | None = None,
        loss_weight: Tensor | None = None,
        loss_denominator: Tensor | None = None,
        row_id: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int = 0,
        max_length_k: int = 0,
    ) -> Tensor:
        """Give the loss: weighted in training, the stock mean over tokens in evaluation.

        The names are those that models pass on from their batch; only the losses' are used.
        """
        if not (torch.is_grad_enabled() or self.is_proof):
            count = (labels[:, 1:] != IGNORED_LABEL).sum()
            total = token_losses(logits, labels).sum()
            return total / (count if num_items_in_batch is None else num_items_in_batch)
        if loss_weight is None or loss_denominator is None or num_items_in_batch is None:
            lost = "loss_denominator" if loss_denominator is None else "num_items_in_batch"
            lost = "loss_weight" if loss_weight is None else lost
            raise ShardError(
                f"the loss got no {lost}: wrap the trainer's data_collator in a WeightCollator, "
                f"set remove_unused_columns=False, and use a model whose forward takes **kwargs"
            )
        self._check_batch(loss_denominator)
        # The Trainer multiplies by the number of ranks itself.
        return weighted_loss(
            logits, labels, loss_weight, denominator=self.denominator, world_size=1
        )

    def _check_batch(self, loss_denominator: Tensor) -> None:
        """Refuse a batch of another objective, and one that is not full: D is a constant."""
        # To read the number costs a GPU nothing more: `token_losses` waits for it as well.
        value, wanted = float(loss_denominator), self.batch_denominator
        # DeepSpeed brings batches to the model's type.
        if abs(value - wanted) <= torch.finfo(loss_denominator.dtype).eps * wanted:
            return
        if self.objective == "rank":
            told = 'of the objective "sample" or "token"' if value else "padding only"
        elif not value.is_integer() or value > wanted:
            told = 'of the objective "token"'
        else:
            told = f"short: {value:g} of {wanted:g} rows are real, the rest is missing or padding"
            told = f'of the objective "rank", or {told}' if value == 1 else told
        raise ShardError(
            f"the batch's loss_denominator={value:g} must equal {wanted:g}, that of a full "
            f'micro-batch of the loss\'s objective "{self.objective}": the batch is {told}; give '
            f"WeightCollator and make_loss one objective, and train on `evenshard export --to "
            f"block` for this world size and micro-batch, or use the mixin "
            f"evenshard.trainer.WeightedShards, which takes any"
        )


def make_loss(objective: str, args: Any) -> StockLoss:
    """Make a `model.loss_function` that lets a stock `transformers.Trainer` train by weight.

    The training set must lie in block order, the collator be a WeightCollator of the same
    objective, and every step be full. `set_loss` makes it, sets it and proves that it is used;
    to assign it to a wrapped model, such as peft's, has no effect.

    Parameters
    ----------
    objective : {"sample", "rank"}
        "token" needs a sum over the step that a loss function cannot see.
    args : transformers.TrainingArguments
        Those of the trainer: they are checked, and say how many rows a step has.

    Raises
    ------
    ShardError
        If a setting would reorder or drop rows, or scale the loss. On a call: if the batch has no
        weights, is of another objective, or is not full.
    """
    if objective not in OBJECTIVES or objective == "token":
        raise ShardError(
            f'objective={objective!r} must be "sample" or "rank" for a stock Trainer; for '
            f'"token" use the mixin evenshard.trainer.WeightedShards'
        )
    if hasattr(args, "packing"):
        raise ShardError(
            "SFTTrainer never calls model.loss_function; use the mixin "
            "evenshard.trainer.WeightedShards"
        )
    if getattr(args, "use_liger_kernel", False):
        raise ShardError(
            "TrainingArguments.use_liger_kernel=True must be False: its forward pass never calls "
            "model.loss_function; use the mixin evenshard.trainer.WeightedShards"
        )
    wanted = {
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "label_smoothing_factor": 0.0,
    }
    if args.world_size > 1:
        wanted["average_tokens_across_devices"] = True
    for name, value in wanted.items():
        if getattr(args, name) != value:
            raise ShardError(
                f"TrainingArguments.{name}={getattr(args, name)!r} must be {value!r}, or rows "
                f"or their weights are lost"
            )
    if args.n_gpu > 1:
        raise ShardError(f"n_gpu={args.n_gpu} must be <= 1; start one process a GPU with torchrun")
    of_batch = float(args.per_device_train_batch_size if objective == "sample" else 1)
    micro_batches = args.world_size * args.gradient_accumulation_steps
    return StockLoss(micro_batches * of_batch, objective, of_batch)


def set_loss(model: torch.nn.Module, objective: str, args: Any) -> None:
    """Let a stock `transformers.Trainer` train a model by weight, and prove that it does.

    The loss of `make_loss` is set on the model inside wrappers (peft, DDP, FSDP, DeepSpeed,
    torch.compile), since an attribute of a wrapper is read by nobody. Then one row of a few tokens
    that all weigh 0 is run forward, without gradients: the loss must be 0. Call it on all ranks.

    Parameters
    ----------
    model : Module
        What the Trainer gets. Its mode and its parameters stay as they are.
    objective, args
        As `make_loss` takes them.

    Raises
    ------
    ShardError
        As by `make_loss`, and if the model has no `loss_function` or does not use it; the model
        then keeps the one that it had.
    """
    loss = make_loss(objective, args)
    reader: Any = _loss_reader(model)
    before = reader.loss_function
    reader.loss_function = replace(loss, is_proof=True)
    try:
        fault = _find_ignored_weights(model, reader)
    except TypeError as error:  # of a forward that takes no further words
        fault = f"fails with {error}"
    finally:
        reader.loss_function = before
    if fault is not None:
        raise ShardError(
            f"a forward pass of {type(reader).__name__} with loss_weight=0 {fault}, so that rows "
            f"would not count by their weights; use a model whose forward takes **kwargs and "
            f"calls self.loss_function, without kernels that replace it, or the mixin "
            f"evenshard.trainer.WeightedShards"
        )
    reader.loss_function = loss


def _loss_reader(model: Any) -> Any:
    """Unwrap a model down to the one whose class has transformers' `loss_function`."""
    inner = model
    while not hasattr(type(inner), "loss_function"):
        inside = inner.get_base_model() if hasattr(inner, "get_base_model") else None  # peft
        for name in ("module", "_orig_mod", "base_model"):  # DDP and others, torch.compile, peft
            inside = getattr(inner, name, None) if inside is None else inside
        if not isinstance(inside, torch.nn.Module) or inside is inner:
            raise ShardError(
                f"model={type(model).__name__} has no loss_function to set, nor has what it wraps "
                f"({type(inner).__name__}): it must be a transformers.PreTrainedModel or a wrapper "
                f"of one; use the mixin evenshard.trainer.WeightedShards"
            )
        inner = inside
    return inner


@torch.no_grad()
def _find_ignored_weights(model: torch.nn.Module, reader: Any) -> str | None:
    """Say what a forward pass with weights of 0 gives, if it is another loss than 0."""
    device = next(reader.parameters()).device
    ids = torch.tensor([[0, 1, 0, 1]], device=device)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        outputs = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            labels=ids,
            loss_weight=torch.zeros(ids.shape, dtype=torch.float32, device=device),
            loss_denominator=torch.tensor(reader.loss_function.batch_denominator, device=device),
            num_items_in_batch=torch.tensor(3, device=device),
        )
    finally:
        for module, mode in modes:
            module.training = mode
    found = getattr(outputs, "loss", None)
    if found is None:
        return "gives no loss"
    balance = balance_loss(reader, outputs)
    expected = 0.0 if balance is None else float(balance)
    if abs(float(found) - expected) <= 1e-5 * abs(expected):
        return None
    return f"gives loss={float(found):.6g}, must give {expected:g}"
