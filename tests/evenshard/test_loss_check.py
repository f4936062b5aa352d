"""The traps of a trainer's loss, built as a user would, and what stops them before the first step.

Each loss is right but for the trap; the model is a random one, so that every token tells.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from evenshard import (  # noqa: E402
    PadCollator,
    ShardError,
    WeightCollator,
    check_start,
    step_denominator,
    weighted_loss,
)
from evenshard.loss import token_losses  # noqa: E402
from evenshard.loss_check import check_loss  # noqa: E402
from tests.evenshard.tiny_training import (  # noqa: E402
    Step,
    collated,
    load_model,
    plan_of,
    steps_of,
    write_uneven_set,
)

Batch = dict[str, Any]
Loss = Callable[[Any, Batch, Any], Any]
PINNED: dict[str, Any] = {"kept": (12, 12), "pinned": True}
RANKS = 2


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Any:
    torch.set_num_threads(1)
    return load_model(model_folder)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_uneven_set(tmp_path_factory.mktemp("mixed") / "set")


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cluster a rank: every row of a micro-batch has one weight."""
    return write_uneven_set(tmp_path_factory.mktemp("pinned") / "set", **PINNED)


def first_step(folder: Path) -> Step:
    return steps_of(plan_of(folder))[0]


def check(model: Any, folder: Path, objective: str, loss_of: Loss, rank: int = 1) -> None:
    """Do the first micro-batch of a loop, with a check of its loss."""
    ranks = collated(first_step(folder), objective)
    denominator = step_denominator([batch for one in ranks for batch in one])
    batch = ranks[rank][0]
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    loss = loss_of(logits, batch, denominator)
    check_loss(loss, logits, batch, denominator=denominator, world_size=RANKS)
    loss.backward()  # the graph is still there


def right(logits: Any, batch: Batch, denominator: Any) -> Any:
    return weighted_loss(
        logits, batch["labels"], batch["loss_weight"], denominator=denominator, world_size=RANKS
    )


def local(logits: Any, batch: Batch, denominator: Any) -> Any:
    """LLaMA-Factory v1, and Megatron-LM by default."""
    weighed = batch["loss_weight"] * token_losses(logits, batch["labels"])
    return weighed.sum() / batch["loss_weight"].sum()


def unweighted(logits: Any, batch: Batch, denominator: Any) -> Any:
    """Give the stock loss: the mean over tokens."""
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100
    )


def times_weight(logits: Any, batch: Batch, denominator: Any) -> Any:
    """Multiply each row's stock loss by its weight, and divide by the tokens."""
    by_row = batch["loss_weight"].amax(1, keepdim=True)  # under "token"
    losses = by_row * token_losses(logits, batch["labels"])
    return losses.sum() / (batch["labels"][:, 1:] != -100).sum()


def twice(logits: Any, batch: Batch, denominator: Any) -> Any:
    by_row = batch["loss_weight"].amax(1, keepdim=True)
    return right(logits, {**batch, "loss_weight": batch["loss_weight"] * by_row}, denominator)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("objective", ["sample", "token", "rank"])
def test_the_weighted_loss_passes(model: Any, pinned: Path, objective: str, rank: int) -> None:
    check(model, pinned, objective, right, rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("objective", ["sample", "token"])
def test_it_passes_in_half_precision(
    model_folder: Path, mixed: Path, objective: str, dtype: Any
) -> None:
    check(load_model(model_folder, dtype), mixed, objective, right)


@pytest.mark.parametrize("factor", [1.0, 3.0, 8192.0])
@pytest.mark.parametrize("in_half", [False, True])
def test_small_shares_of_half_precision(factor: float, in_half: bool) -> None:
    """A share of 8 / 2000 / 8192 is subnormal in float16, where it has 3 bits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 2000, 50, generator=generator).half().requires_grad_()
    ids = torch.randint(0, 50, (2000,), generator=generator)
    row = {"row_id": 0, "weight": 1.0, "input_ids": ids, "labels": ids}
    batch = WeightCollator(PadCollator(0))([row])
    loss = factor * weighted_loss(
        logits, batch["labels"], batch["loss_weight"], denominator=8192.0, world_size=8
    )
    loss = loss.half() if in_half else loss

    def check_it() -> None:
        check_loss(loss, logits, batch, denominator=8192.0, world_size=8)

    if factor == 1:
        check_it()
    else:
        with pytest.raises(ShardError, match=r"every token counts .* times what it must"):
            check_it()
    [gradient] = torch.autograd.grad(loss, logits)  # the graph is still there
    assert gradient.isfinite().all()


@pytest.mark.parametrize("objective", ["sample", "token", "rank"])
def test_a_local_sum_that_cancels_a_constant_weight(
    model: Any, pinned: Path, objective: str
) -> None:
    message = r"rows as planned\. .*own sum of weights \(a weight that is constant there cancels\)"
    with pytest.raises(ShardError, match=message + ".*use weighted_loss with step_denominator"):
        check(model, pinned, objective, local)


@pytest.mark.parametrize("objective", ["sample", "token"])
def test_a_local_sum_of_mixed_weights(model: Any, mixed: Path, objective: str) -> None:
    with pytest.raises(ShardError, match=r"own sum of weights.*step_denominator"):
        check(model, mixed, objective, local)


@pytest.mark.parametrize("objective", ["sample", "token"])
def test_a_dropped_weight(model: Any, mixed: Path, objective: str) -> None:
    with pytest.raises(ShardError, match=r"weights have no effect.*use weighted_loss"):
        check(model, mixed, objective, unweighted)


def test_a_constant_weight_that_is_dropped(model: Any, pinned: Path) -> None:
    """One micro-batch of one weight cannot tell it from another divisor: both are named."""
    with pytest.raises(ShardError, match=r"times what it must: .*constant there cancels"):
        check(model, pinned, "token", unweighted)


def test_a_stock_loss_times_the_weight(model: Any, mixed: Path) -> None:
    def stock(logits: Any, batch: Batch, denominator: Any) -> Any:
        tokens = (batch["labels"] != -100).sum(1, keepdim=True)
        by_row = batch["loss_weight"].sum(1, keepdim=True)  # under "sample"
        losses = by_row * token_losses(logits, batch["labels"])
        return losses.sum() / tokens.sum()

    with pytest.raises(ShardError, match=r"`loss \* weight` does, so that long rows count more"):
        check(model, mixed, "sample", stock)
    # Under "token" that is the right shape, with the wrong number below.
    with pytest.raises(ShardError, match=r"divided by another number than D"):
        check(model, mixed, "token", times_weight)


@pytest.mark.parametrize("objective", ["sample", "token"])
def test_a_weight_that_counts_twice(model: Any, mixed: Path, objective: str) -> None:
    def doubled(logits: Any, batch: Batch, denominator: Any) -> Any:
        size = batch["loss_weight"].sum(1, keepdim=True)
        return right(logits, {**batch, "loss_weight": batch["loss_weight"] * size}, denominator)

    loss_of = twice if objective == "token" else doubled
    with pytest.raises(ShardError, match=r"the weight counts twice: .*multiply by nothing else"):
        check(model, mixed, objective, loss_of)


@pytest.mark.parametrize("factor", [0.5, 2.0, 1 / RANKS])
def test_a_loss_that_is_scaled_again(model: Any, mixed: Path, factor: float) -> None:
    def scaled(logits: Any, batch: Batch, denominator: Any) -> Any:
        return factor * right(logits, batch, denominator)

    message = rf"counts {factor:g} times what it must: .*once more by the accumulation"
    with pytest.raises(ShardError, match=message):
        check(model, mixed, "sample", scaled)


def test_other_losses_and_batches(model: Any, mixed: Path) -> None:
    def one_token_off(logits: Any, batch: Batch, denominator: Any) -> Any:
        weight = batch["loss_weight"].clone()
        row, column = weight.nonzero()[3].tolist()
        weight[row, column] *= 1.5
        return right(logits, {**batch, "loss_weight": weight}, denominator)

    with pytest.raises(ShardError, match=r"the token at row 0, position \d+ counts .*, must count"):
        check(model, mixed, "sample", one_token_off)
    with pytest.raises(ShardError, match="the loss is not made from its logits"):
        check(model, mixed, "sample", lambda logits, batch, denominator: (logits * 0).sum())
    with pytest.raises(ShardError, match="the loss is not made from its logits"):
        parameter = torch.ones(1, requires_grad=True)
        check(model, mixed, "sample", lambda logits, batch, denominator: parameter.sum())
    logits = torch.randn(1, 4, 9, requires_grad=True)
    with pytest.raises(ShardError, match="has no loss_weight; make it by a WeightCollator"):
        check_loss(
            logits.sum(), logits, {"labels": torch.ones(1, 4)}, denominator=1.0, world_size=1
        )
    nothing = {"labels": torch.full((1, 4), -100), "loss_weight": torch.zeros(1, 4)}
    check_loss(logits.sum() * 0, logits, nothing, denominator=1.0, world_size=1)


# The same in transformers.Trainer, one process.


def stock_trainer(folder: Path, model: Any, out: Path, base: Any, **changed: Any) -> Any:
    from datasets import Dataset

    from tests.evenshard.test_trainer import training_arguments

    rows = [row for rank in steps_of(plan_of(folder, 1))[0] for batch in rank for row in batch]
    columns = Dataset.from_list([{name: row[name].tolist() for name in row} for row in rows])
    args = training_arguments(out, train_sampling_strategy="sequential", **changed)
    collate = WeightCollator(PadCollator(0), keep_row_ids=True)
    return base(model=model, args=args, train_dataset=columns, data_collator=collate)


def test_a_trainer_that_multiplies_its_loss(model: Any, mixed: Path, tmp_path: Path) -> None:
    """The way that is found first: `compute_loss` times the weight of the rows."""
    from transformers import Trainer

    class Multiplied(Trainer):  # type: ignore[misc]
        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            weight = inputs["loss_weight"].sum(1).mean()
            passed = {name: inputs[name] for name in ("input_ids", "attention_mask", "labels")}
            loss, outputs = super().compute_loss(model, passed, True, num_items_in_batch)
            return (loss * weight, outputs) if return_outputs else loss * weight

    trainer = stock_trainer(mixed, model, tmp_path, Multiplied, remove_unused_columns=False)
    window, tokens = trainer.get_batch_samples(
        iter(trainer.get_train_dataloader()), 2, trainer.args.device
    )
    loss, outputs = trainer.compute_loss(model, dict(window[0]), True, tokens)
    with pytest.raises(ShardError, match=r"the weights have no effect"):
        check_loss(
            loss, outputs.logits, window[0], denominator=step_denominator(window), world_size=1
        )


def test_the_mixin_passes(model: Any, mixed: Path, tmp_path: Path) -> None:
    from tests.evenshard.test_trainer import mixed_trainer, training_arguments

    args = training_arguments(tmp_path, gradient_accumulation_steps=4)
    trainer = mixed_trainer("hf", mixed, model.train(), args)
    window, denominator = trainer.get_batch_samples(
        iter(trainer.get_train_dataloader()), 4, trainer.args.device
    )
    loss, outputs = trainer.compute_loss(model, dict(window[0]), True, denominator)
    check_loss(loss, outputs.logits, window[0], denominator=denominator, world_size=1)


def test_a_trainer_that_drops_the_weights(model: Any, mixed: Path, tmp_path: Path) -> None:
    """remove_unused_columns is on by default; a WeightCollator then finds no weight."""
    from transformers import Trainer

    trainer = stock_trainer(mixed, model, tmp_path, Trainer)
    plan = plan_of(mixed, 1)
    with pytest.raises(ShardError, match=r"no weight.*set remove_unused_columns=False"):
        check_start(trainer.get_train_dataloader(), plan, 0)
    trainer.data_collator = PadCollator(0)
    with pytest.raises(ShardError, match=r"neither weight.*set remove_unused_columns=False"):
        check_start(trainer.get_train_dataloader(), plan, 0)


def test_trl_that_packs(model: Any, model_folder: Path, mixed: Path, tmp_path: Path) -> None:
    """Packing keeps input_ids and labels alone, and makes other rows of them."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    from tests.evenshard.test_trainer import tokenizer_of, training_arguments

    rows = [row for batch in first_step(mixed)[0] for row in batch]
    columns = Dataset.from_list([{name: row[name].tolist() for name in row} for row in rows])
    args = training_arguments(tmp_path, "trl", packing=True, max_length=64)
    trainer = trl.SFTTrainer(
        model=load_model(model_folder),
        args=args,
        train_dataset=columns,
        processing_class=tokenizer_of(model_folder),
    )
    with pytest.raises(ShardError, match=r"set packing=False|in TRL also packing=False"):
        check_start(trainer.get_train_dataloader(), plan_of(mixed, 1), 0)
