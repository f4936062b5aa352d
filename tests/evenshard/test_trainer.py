"""Real trainers on two ranks: the gradient of each step, the rows of each rank, and a restart.

Parameters stay constant (learning rate 0), so that each step's gradient can be compared with the
explicit weighted sum over the rows of the plan, row by row in float64 by one process.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from evenshard.collate import PadCollator, WeightCollator  # noqa: E402
from evenshard.dataset import SetRows  # noqa: E402
from evenshard.loss import step_denominator, token_losses, weighted_loss  # noqa: E402
from evenshard.plan import Plan  # noqa: E402
from evenshard.resume import ORDER_NAME, check_resume, order_of  # noqa: E402
from evenshard.sampler import ShardSampler  # noqa: E402
from evenshard.shards import ShardError  # noqa: E402
from evenshard.shardset import ShardSet  # noqa: E402
from evenshard.stock import make_loss  # noqa: E402
from tests.evenshard.folders import write_set  # noqa: E402
from tests.evenshard.ranks import run_ranks  # noqa: E402
from tests.evenshard.tiny_training import (  # noqa: E402
    PAD,
    explicit_gradient,
    flat_gradient,
    ids_of,
    load_model,
    plan_of,
    steps_of,
    worst_error,
    write_uneven_set,
)

EXACT, WRONG = 1e-5, 1e-2


def training_arguments(out: Path, kind: str = "hf", **changed: Any) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    stated: dict[str, Any] = {
        "output_dir": str(out),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_steps": 1,
        "dataloader_pin_memory": False,
    }
    if kind == "trl":
        from trl import SFTConfig

        stated |= {"max_length": None, "bf16": False, "gradient_checkpointing": False}
        return SFTConfig(**{**stated, **changed})
    from transformers import TrainingArguments

    return TrainingArguments(**{**stated, **changed})


def recorder() -> Any:
    """Make a callback that keeps each optimizer step's gradient and the ids that it is of."""
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):  # type: ignore[misc]
        trainer: Any = None

        def __init__(self) -> None:
            self.gradients: list[Any] = []
            self.row_ids: list[int] = []

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            self.gradients.append(flat_gradient(rest["model"]))
            if self.trainer is not None:
                self.row_ids += self.trainer.last_row_ids.tolist()

    return Recorder()


def mixed_trainer(kind: str, folder: Path, model: Any, args: Any, **rest: Any) -> Any:
    """Make the three lines of a user: a class, a trainer, and `train()` later."""
    from evenshard.trainer import WeightedShards

    if kind == "trl":
        from trl import SFTTrainer as Stock
    else:
        from transformers import Trainer as Stock

    class WeightedTrainer(WeightedShards, Stock):  # type: ignore[misc,valid-type]
        pass

    return WeightedTrainer(shards=folder, model=model, args=args, **rest)


def tokenizer_of(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)


def run_all(rank: int, world_size: int, function: Any, cases: Sequence[tuple[Any, ...]]) -> Any:
    """Run one function on several cases in the same processes: starting them takes longest."""
    return [function(rank, world_size, *case) for case in cases]


def train_mixed(
    rank: int, world_size: int, folder: Path, model_folder: Path, out: Path, case: dict[str, Any]
) -> Any:
    """Train two epochs with the mixin; give the rank's ids, and rank 0 the errors."""
    kind, flat = case["kind"], case.get("flat", False)
    changed = case.get("changed", {})
    if kind == "trl" and flat:
        changed = {**changed, "padding_free": True}
    args = training_arguments(out, kind, **changed)
    keeper = recorder()
    rest: dict[str, Any] = {"callbacks": [keeper]}
    if kind == "trl":
        rest["processing_class"] = tokenizer_of(model_folder)
    elif flat:
        from transformers import DataCollatorWithFlattening

        rest["data_collator"] = DataCollatorWithFlattening()
    trainer = mixed_trainer(kind, folder, load_model(model_folder), args, **rest)
    keeper.trainer = trainer
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    plan = trainer.plan
    errors = [0.0, 0.0]
    if rank == 0:
        merged = args.gradient_accumulation_steps // plan.accumulation
        errors[0] = worst_error(model_folder, keeper.gradients, plan, plan.objective, merged)
        if merged == 1:
            exact = load_model(model_folder, torch.float64)
            loss = explicit_gradient(exact, steps_of(plan)[0], plan.objective)[1]
            errors[1] = abs(logged[0] / loss - 1)
    return keeper.row_ids, errors, len(keeper.gradients)


def check_mixed(
    tmp_path: Path, model_folder: Path, cases: Sequence[dict[str, Any]], world_size: int = 2
) -> None:
    folders = [
        write_uneven_set(tmp_path / f"set{number}", **case.get("set", {}))
        for number, case in enumerate(cases)
    ]
    given = [
        (folder, model_folder, tmp_path / "out", case)
        for folder, case in zip(folders, cases, strict=True)
    ]
    results = run_ranks(run_all, world_size, train_mixed, given, timeout_s=300)
    for number, case in enumerate(cases):
        plan = plan_of(folders[number], world_size)
        merged = case.get("changed", {}).get("gradient_accumulation_steps", 2) // plan.accumulation
        for rank in range(world_size):
            row_ids, _, steps = results[rank][number]
            assert row_ids == ids_of(plan, rank), case
            assert steps == 2 * -(-plan.num_steps // merged), case
        gradient, logged = results[0][number][1]
        assert gradient < EXACT, case
        assert logged < EXACT, case


def train_plainly(rank: int, world_size: int, folder: Path, model_folder: Path) -> Any:
    """A bare DDP loop of one epoch, per objective and for the trap of a local denominator."""
    from torch.nn.parallel import DistributedDataParallel

    plan = plan_of(folder)
    objectives = ("sample", "token") + (("rank",) if plan.objective == "rank" else ())
    errors = {}
    for objective in (*objectives, "local"):
        collator = WeightCollator(PadCollator(PAD), "token" if objective == "local" else objective)
        loader: Any = torch.utils.data.DataLoader(
            SetRows(plan.shards), batch_sampler=ShardSampler(plan, rank), collate_fn=collator
        )
        model = DistributedDataParallel(load_model(model_folder))
        batches, gradients = list(loader), []
        for step in range(0, len(batches), plan.accumulation):
            window = batches[step : step + plan.accumulation]
            denominator = step_denominator(window)
            model.zero_grad()
            for index, batch in enumerate(window):
                model.require_backward_grad_sync = index + 1 == len(window)
                inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
                logits = model(**inputs).logits
                if objective == "local":
                    denominator = batch["loss_weight"].sum() * len(window) * world_size
                weighted_loss(
                    logits,
                    batch["labels"],
                    batch["loss_weight"],
                    denominator=denominator,
                    world_size=world_size,
                ).backward()
            gradients.append(flat_gradient(model.module))
        if rank == 0:
            wanted = objectives[-1] if objective == "local" else objective
            errors[objective] = worst_error(model_folder, gradients, plan, wanted)
    return errors


PINNED: dict[str, Any] = {"kept": (12, 12), "pinned": True, "objective": "rank"}


def test_plain_ddp(tmp_path: Path, model_folder: Path) -> None:
    sets: list[dict[str, Any]] = [{}, {"lognormal": True}, PINNED]
    given = [
        (write_uneven_set(tmp_path / f"set{number}", **options), model_folder)
        for number, options in enumerate(sets)
    ]
    for errors in run_ranks(run_all, 2, train_plainly, given)[0]:
        trap = errors.pop("local")
        assert max(errors.values()) < EXACT
        assert trap > WRONG


def test_hf_trainer(tmp_path: Path, model_folder: Path) -> None:
    check_mixed(tmp_path, model_folder, [{"kind": "hf"}])


@pytest.mark.trainers
@pytest.mark.parametrize("kind", ["hf", "trl"])
def test_mixin(tmp_path: Path, model_folder: Path, kind: str) -> None:
    if kind == "trl":
        pytest.importorskip("trl")
    sets: list[dict[str, Any]] = [{"lognormal": True}, {}, {"objective": "token"}, PINNED]
    cases = [{"kind": kind, "flat": flat, "set": s} for flat in (False, True) for s in sets]
    # Two steps of the plan in one, and the third alone.
    cases.append({"kind": kind, "changed": {"gradient_accumulation_steps": 4}})
    check_mixed(tmp_path, model_folder, cases)


@pytest.mark.trainers
@pytest.mark.parametrize("world_size", [1, 3])
def test_mixin_on_other_numbers_of_ranks(
    tmp_path: Path, model_folder: Path, world_size: int
) -> None:
    """One rank reads both shards; of three, some get padding."""
    pytest.importorskip("trl")
    changed = {"gradient_accumulation_steps": {1: 4, 3: 2}[world_size]}
    cases = [
        {"kind": "hf", "changed": changed},
        {"kind": "hf", "changed": changed, "set": {"objective": "token"}},
        {"kind": "trl", "changed": changed, "flat": True},
    ]
    check_mixed(tmp_path, model_folder, cases, world_size)


def test_the_router_loss_of_a_mixture_of_experts_is_not_weighted(tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=512,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    torch.manual_seed(0)
    model = MixtralForCausalLM(config)
    args = training_arguments(tmp_path / "out", gradient_accumulation_steps=4)
    trainer = mixed_trainer("hf", write_uneven_set(tmp_path / "set"), model, args)
    batches = iter(trainer.get_train_dataloader())
    window, denominator = trainer.get_batch_samples(batches, 4, args.device)
    trainer.current_gradient_accumulation_steps = 4
    total = sum(trainer.compute_loss(model, dict(b), False, denominator) for b in window)
    expected = 0.0
    for batch in window:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        outputs = model(**inputs)
        nll = token_losses(outputs.logits, batch["labels"])
        expected += (batch["loss_weight"] * nll).sum() / 8 + 0.5 * outputs.aux_loss / 4
    assert total.item() == pytest.approx(expected.item(), rel=1e-6)


class Interleaved(torch.utils.data.Dataset):  # type: ignore[misc]
    """The set in block order, as an export would write it: batch b is of worker b % W."""

    def __init__(self, folder: Path) -> None:
        plan = plan_of(folder)
        by_rank = [list(plan.batches(0, rank)) for rank in range(plan.world_size)]
        batches = (batch for together in zip(*by_rank, strict=True) for batch in together)
        self.numbers = [int(number) for batch in batches for number in batch]
        self.rows = SetRows(plan.shards)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.rows[self.numbers[index]]


def train_stock(
    rank: int, world_size: int, folder: Path, model_folder: Path, out: Path, route: str
) -> Any:
    """A stock Trainer of one epoch: with `make_loss`, or naively."""
    from transformers import Trainer

    args = training_arguments(
        out,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
    )
    model, keeper = load_model(model_folder), recorder()
    objective = route if route in ("sample", "rank") else "sample"
    collator: Any = WeightCollator(PadCollator(PAD), objective, keep_row_ids=True)
    trainer_class = Trainer
    if route == objective:
        model.loss_function = make_loss(objective, args)
    if route == "multiplied":

        class Multiplied(Trainer):  # type: ignore[misc]
            def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
                weight = inputs.pop("loss_weight").amax()  # one weight a micro-batch: pinned
                return super().compute_loss(model, inputs, *rest, **named) * weight

        trainer_class = Multiplied
        collator = WeightCollator(PadCollator(PAD), "token")
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=Interleaved(folder),
        data_collator=collator,
        callbacks=[keeper],
    )
    trainer.train()
    if rank:
        return {}
    wanted = ("sample", "token", "rank") if route != objective else (objective,)
    return {w: worst_error(model_folder, keeper.gradients, plan_of(folder), w) for w in wanted}


@pytest.mark.trainers
def test_stock_trainer_with_make_loss_and_naively(tmp_path: Path, model_folder: Path) -> None:
    mixed = write_uneven_set(tmp_path / "mixed")
    pinned = write_uneven_set(tmp_path / "pinned", **PINNED)
    routes = [(mixed, "sample"), (pinned, "rank"), (pinned, "ignored"), (pinned, "multiplied")]
    given = [(folder, model_folder, tmp_path / "out", route) for folder, route in routes]
    results = run_ranks(run_all, 2, train_stock, given, timeout_s=300)[0]
    for (_, route), errors in zip(routes, results, strict=True):
        if route in errors and len(errors) == 1:
            assert errors[route] < EXACT
        else:
            assert min(errors.values()) > WRONG


def restart(
    rank: int, world_size: int, folder: Path, model_folder: Path, out: Path, kind: str
) -> Any:
    """Train two epochs at once, and once more from a checkpoint inside the second epoch."""
    rest: dict[str, Any] = {}
    if kind == "trl":
        rest["processing_class"] = tokenizer_of(model_folder)
    ids = []
    for resume in (None, str(out / "checkpoint-4")):
        args = training_arguments(
            out, kind, save_strategy="steps", save_steps=2, learning_rate=1e-3
        )
        keeper = recorder()
        trainer = mixed_trainer(
            kind, folder, load_model(model_folder), args, callbacks=[keeper], **rest
        )
        keeper.trainer = trainer
        trainer.train(resume_from_checkpoint=resume)
        ids.append(keeper.row_ids)
        weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        ids.append(weights.double().sum().item())
    return ids


@pytest.mark.trainers
def test_a_restart_goes_on_with_the_same_rows(tmp_path: Path, model_folder: Path) -> None:
    pytest.importorskip("trl")
    folder = write_uneven_set(tmp_path / "set")  # 3 steps an epoch: step 4 is inside the second
    plan = plan_of(folder)
    given = [(folder, model_folder, tmp_path / kind, kind) for kind in ("hf", "trl")]
    for rank, results in enumerate(run_ranks(run_all, 2, restart, given, timeout_s=300)):
        for whole, whole_sum, rest, rest_sum in results:
            assert whole == ids_of(plan, rank)
            assert rest == whole[4 * plan.rows_per_rank :]
            assert rest_sum == pytest.approx(whole_sum, rel=1e-12)


def checkpoint_of(folder: Path, out: Path, model_folder: Path, **changed: Any) -> Any:
    """Make a trainer of one rank that saves after two steps."""
    stated = {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 4}
    args = training_arguments(out, max_steps=2, **{**stated, **changed})
    return mixed_trainer("hf", folder, load_model(model_folder), args)


def test_a_checkpoint_of_other_rows_is_refused(
    tmp_path: Path, model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, checkpoint = tmp_path / "out", tmp_path / "out" / "checkpoint-2"
    folder, other = tmp_path / "set", tmp_path / "other"
    for path, seed in ((folder, 0), (other, 1)):
        write_uneven_set(path, seed=seed)  # 3 steps of 8 rows
    trainer = checkpoint_of(folder, out, model_folder)
    trainer.train()
    assert json.loads((checkpoint / ORDER_NAME).read_text())["set_steps"] == 1
    with pytest.raises(ShardError, match="was trained on the set with fingerprint="):
        checkpoint_of(other, out, model_folder).train(resume_from_checkpoint=True)
    twice = checkpoint_of(folder, out, model_folder, gradient_accumulation_steps=8)
    with pytest.raises(ShardError, match="set gradient_accumulation_steps=4"):
        twice.train(resume_from_checkpoint=str(checkpoint))
    # The same steps in other micro-batches: what Trainer skips is what was trained.
    same = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    assert checkpoint_of(folder, out, model_folder, **same).train(str(checkpoint)) is not None
    (checkpoint / ORDER_NAME).unlink()
    with caplog.at_level("WARNING"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert "has no evenshard.json" in caplog.text


def test_a_checkpoint_on_other_ranks(tmp_path: Path) -> None:
    write_set(tmp_path / "set", world_size=1, kept=(14, 6, 4))
    plans = {ranks: Plan(ShardSet(tmp_path / "set"), ranks) for ranks in (1, 2, 3, 4)}

    def resume(ranks: int, accumulation: int, on: int, with_accumulation: int) -> None:
        order = order_of(plans[ranks], accumulation)
        (tmp_path / ORDER_NAME).write_text(json.dumps(order))
        check_resume(tmp_path, plans[on], with_accumulation)

    # Two ranks merge two steps of the set into one.
    resume(1, 4, 2, 2)
    resume(2, 2, 1, 4)
    with pytest.raises(ShardError, match=r"1 steps of the set .*\(1 ranks.*resume on 1 ranks"):
        resume(1, 2, 2, 2)
    with pytest.raises(ShardError, match="set gradient_accumulation_steps=8"):
        resume(4, 2, 1, 2)


def evaluated(
    rank: int, world_size: int, folder: Path, model_folder: Path, out: Path, kind: str
) -> Any:
    """Evaluate with the mixin after training, and with the stock trainer."""
    from datasets import Dataset

    rows = [SetRows(plan_of(folder).shards)[number] for number in range(6)]
    held_out = Dataset.from_list(
        [{name: row[name].tolist() for name in ("input_ids", "labels")} for row in rows]
    )
    args = training_arguments(out, kind, num_train_epochs=1, per_device_eval_batch_size=2)
    rest: dict[str, Any] = {"processing_class": tokenizer_of(model_folder)}
    if kind == "hf":
        from transformers import Trainer as Stock

        rest["data_collator"] = PadCollator(PAD)
    else:
        from trl import SFTTrainer as Stock
    model = load_model(model_folder)
    mixed = mixed_trainer(kind, folder, model, args, eval_dataset=held_out, **rest)
    mixed.train()
    stock = Stock(
        model=load_model(model_folder),
        args=args,
        train_dataset=held_out,
        eval_dataset=held_out,
        **rest,
    )
    names = ("eval_loss", "eval_entropy") if kind == "trl" else ("eval_loss",)
    found, expected = mixed.evaluate(), stock.evaluate()
    return [(found[name], expected[name]) for name in names]


@pytest.mark.trainers
def test_evaluation_is_the_stock_one(tmp_path: Path, model_folder: Path) -> None:
    pytest.importorskip("trl")
    folder = write_uneven_set(tmp_path / "set")
    given = [(folder, model_folder, tmp_path / kind, kind) for kind in ("hf", "trl")]
    for results in run_ranks(run_all, 2, evaluated, given, timeout_s=300):
        for found, expected in (pair for result in results for pair in result):
            assert found == pytest.approx(expected, rel=1e-6)


SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("hf", {"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy='group_by_le"),
    ("hf", {"accelerator_config": {"dispatch_batches": True}}, "accelerator_config.dispatch_batch"),
    ("hf", {"accelerator_config": {"split_batches": True}}, "accelerator_config.split_batches=Tr"),
    ("hf", {"auto_find_batch_size": True}, "auto_find_batch_size=True"),
    ("hf", {"ignore_data_skip": True}, "ignore_data_skip=True would .*set it to False"),
    ("hf", {"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1 must be 0"),
    ("hf", {"per_device_train_batch_size": 3}, r"per_device_train_batch_size=3 on 1 ranks: .*work"),
    ("hf", {"gradient_accumulation_steps": 3}, r"gradient_accumulation_steps=3 must be a multipl"),
    ("trl", {"packing": True, "max_length": 64}, "packing=True would change"),
    ("trl", {"loss_type": "dft"}, "loss_type='dft'"),
    ("trl", {"max_length": 16}, r"max_length=16 must be >= \d+, the longest row"),
]


@pytest.mark.parametrize(("kind", "changed", "message"), SETTINGS)
def test_settings_that_lose_rows_or_weights_are_named(
    tmp_path: Path, model_folder: Path, kind: str, changed: dict[str, Any], message: str
) -> None:
    if kind == "trl":
        pytest.importorskip("trl")
    folder = write_uneven_set(tmp_path / "set")
    args = training_arguments(
        tmp_path / "out", kind, **{"gradient_accumulation_steps": 4, **changed}
    )
    with pytest.raises(ShardError, match=message):
        mixed_trainer(kind, folder, load_model(model_folder), args)


def test_loader_workers_keep_the_order(tmp_path: Path, model_folder: Path) -> None:
    folder = write_uneven_set(tmp_path / "set")
    changed = {"gradient_accumulation_steps": 4, "dataloader_num_workers": 2}
    args = training_arguments(tmp_path / "out", **changed)
    trainer = mixed_trainer("hf", folder, load_model(model_folder), args)
    loader = trainer.get_train_dataloader()
    row_ids = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        row_ids += [int(row) for batch in loader for row in batch["row_id"]]
    assert row_ids == ids_of(plan_of(folder, 1), 0)


def test_only_the_stock_collators_are_replaced(tmp_path: Path, model_folder: Path) -> None:
    """A subclass is the user's own, and may do more than pad."""
    from transformers import DataCollatorWithPadding, default_data_collator

    class Own(DataCollatorWithPadding):  # type: ignore[misc]
        def __call__(self, features: Any) -> Any:
            return {**PadCollator(PAD)(features), "mine": torch.ones(len(features))}

    tokenizer = tokenizer_of(model_folder)
    args = training_arguments(tmp_path / "out", gradient_accumulation_steps=4)
    folder = write_uneven_set(tmp_path / "set")
    collators = (Own(tokenizer), DataCollatorWithPadding(tokenizer), default_data_collator)
    for collator, is_own in zip(collators, (True, False, False), strict=True):
        trainer = mixed_trainer(
            "hf", folder, load_model(model_folder), args, data_collator=collator
        )
        batch = next(iter(trainer.get_train_dataloader()))
        assert ("mine" in batch) == is_own


def test_a_train_dataset_of_ones_own_is_refused(tmp_path: Path, model_folder: Path) -> None:
    folder = write_uneven_set(tmp_path / "set")
    rows = SetRows(plan_of(folder).shards)
    with pytest.raises(ShardError, match="train_dataset=SetRows must not be given beside shards"):
        mixed_trainer("hf", folder, None, None, train_dataset=rows)
