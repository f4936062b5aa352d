"""The loss of a stock Trainer: what it refuses, and whether a model really uses it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from evenshard.collate import PadCollator, WeightCollator  # noqa: E402
from evenshard.loss import token_losses  # noqa: E402
from evenshard.shards import ShardError  # noqa: E402
from evenshard.stock import StockLoss, make_loss, set_loss  # noqa: E402
from tests.evenshard.tiny_training import load_model  # noqa: E402


def arguments(**changed: Any) -> SimpleNamespace:
    stated = {
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "label_smoothing_factor": 0.0,
        "average_tokens_across_devices": True,
        "world_size": 2,
        "n_gpu": 0,
        "gradient_accumulation_steps": 3,
        "per_device_train_batch_size": 5,
    }
    return SimpleNamespace(**{**stated, **changed})


def test_stock_loss_has_a_constant_denominator() -> None:
    assert make_loss("sample", arguments()).denominator == 30
    assert make_loss("rank", arguments()).denominator == 6
    logits, labels = torch.randn(1, 4, 9, requires_grad=True), torch.tensor([[1, 2, -100, 3]])
    with torch.no_grad():
        stock = make_loss("sample", arguments())(logits=logits, labels=labels)
        assert torch.allclose(stock, token_losses(logits, labels).sum() / 2)
    with pytest.raises(ShardError, match=r"got no loss_weight.*remove_unused_columns=False"):
        make_loss("sample", arguments())(logits=logits, labels=labels, num_items_in_batch=2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_sampling_strategy": "random"}, "train_sampling_strategy='random' must be 'seq"),
        ({"train_sampling_strategy": "group_by_length"}, "must be 'sequential'"),
        ({"remove_unused_columns": True}, "remove_unused_columns=True must be False"),
        ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1 must be 0.0"),
        ({"average_tokens_across_devices": False}, "average_tokens_across_devices=False must be"),
        ({"n_gpu": 2}, "n_gpu=2 must be <= 1.*torchrun"),
        ({"use_liger_kernel": True}, "use_liger_kernel=True must be False.*never calls"),
        ({"packing": False}, "SFTTrainer never calls model.loss_function.*WeightedShards"),
    ],
)
def test_settings_that_lose_weights_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ShardError, match=message):
        make_loss("sample", arguments(**changed))


def test_token_needs_the_mixin() -> None:
    with pytest.raises(ShardError, match=r"objective='token' must be.*WeightedShards"):
        make_loss("token", arguments())


def tiny_batch(objective: str, lengths: tuple[int, ...] = (40, 30, 20, 10, 9)) -> dict[str, Any]:
    rows = [
        {
            "row_id": number,
            "weight": 1.0,
            "input_ids": list(range(1, length)),
            "labels": [-100, *range(2, length)],
        }
        for number, length in enumerate(lengths)
    ]
    return WeightCollator(PadCollator(0), objective)(rows)


def stock_loss(loss: StockLoss, batch: dict[str, Any]) -> Any:
    logits = torch.zeros(*batch["labels"].shape, 50, requires_grad=True)
    return loss(
        logits,
        batch["labels"],
        loss_weight=batch["loss_weight"],
        loss_denominator=batch["loss_denominator"],
        num_items_in_batch=1,
    )


@pytest.mark.parametrize(
    ("objective", "other", "message"),
    [
        ("sample", "token", r'=99 must equal 5,.* objective "sample".* of the objective "token"'),
        ("sample", "rank", r'=1 must equal 5,.* objective "sample".* of the objective "rank", or'),
        ("rank", "sample", r'=5 must equal 1,.* "rank": the batch is of the objective "sample" or'),
        ("rank", "token", r'=99 must equal 1,.* "rank": .* or "token"; give WeightCollator and'),
    ],
)
def test_a_batch_of_another_objective_is_refused(objective: str, other: str, message: str) -> None:
    """Token batches made a sample loss wrong by 33 times, in silence."""
    loss = make_loss(objective, arguments())
    for _ in range(2):  # at every call, not only the first
        assert torch.isfinite(stock_loss(loss, tiny_batch(objective)))
        with pytest.raises(ShardError, match="loss_denominator" + message):
            stock_loss(loss, tiny_batch(other))


def test_a_batch_that_is_not_full_is_refused() -> None:
    loss = make_loss("sample", arguments())
    with pytest.raises(ShardError, match=r"=3 must equal 5, .*short: 3 of 5 rows are real"):
        stock_loss(loss, tiny_batch("sample", (9, 8, 7)))
    batch = tiny_batch("sample")
    batch["loss_denominator"] = batch["loss_denominator"].bfloat16()  # as DeepSpeed gives it
    stock_loss(loss, batch)
    batch["loss_denominator"] = None
    with pytest.raises(ShardError, match="got no loss_denominator"):
        stock_loss(loss, batch)


class LikePeft(torch.nn.Module):
    """Reads attributes of what it wraps, as peft does, and keeps those that are set."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base_model = base

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def forward(self, **words: Any) -> Any:
        return self.base_model(**words)


class Peft(LikePeft):
    """Its `base_model` is a tuner, as of LoRA, that holds the model."""

    def __init__(self, base: Any) -> None:
        super().__init__(LikePeft(base))

    def get_base_model(self) -> Any:
        return self.base_model.base_model


class LikeDDP(torch.nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, **words: Any) -> Any:
        return self.module(**words)


WRAPPERS: list[Any] = [lambda m: m, LikePeft, Peft, LikeDDP, lambda m: LikeDDP(Peft(m))]


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_set_loss_reaches_the_model_in_its_wrappers(wrap: Any, model_folder: Path) -> None:
    base = load_model(model_folder)
    model = wrap(base).train()
    base.model.layers[0].eval()  # a part that was frozen stays so
    before = {name: value.clone() for name, value in base.state_dict().items()}
    set_loss(model, "sample", arguments())
    assert base.loss_function == make_loss("sample", arguments())
    assert model.training and base.lm_head.training and not base.model.layers[0].training
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())
    assert all(parameter.grad is None for parameter in base.parameters())
    batch = tiny_batch("sample")
    batch["loss_weight"] *= 0
    assert model(**batch, num_items_in_batch=torch.tensor(9)).loss == 0


def test_a_loss_that_is_set_on_a_wrapper_has_no_effect(model_folder: Path) -> None:
    """The trap that `set_loss` is for."""
    base = load_model(model_folder)
    model = Peft(base)
    model.loss_function = make_loss("sample", arguments())
    batch = tiny_batch("sample")
    batch["loss_weight"] *= 0
    assert model(**batch, num_items_in_batch=torch.tensor(9)).loss > 1


def test_a_model_that_ignores_its_loss_function_is_refused(model_folder: Path) -> None:
    from transformers import LlamaForCausalLM

    class Fused(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, labels: Any = None, **words: Any) -> Any:
            words = {name: words[name] for name in ("input_ids", "attention_mask")}
            outputs = super().forward(**words)
            scores = outputs.logits[:, :-1].flatten(0, 1)
            outputs.loss = torch.nn.functional.cross_entropy(scores, labels[:, 1:].flatten())
            return outputs

    class Strict(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> Any:
            return super().forward(input_ids, attention_mask, labels=labels)

    class Forgetful(LlamaForCausalLM):  # type: ignore[misc]
        def forward(self, labels: Any = None, **words: Any) -> Any:
            return super().forward(labels=labels, input_ids=words["input_ids"])

    messages = {
        Fused: r"loss_weight=0 gives loss=\d.*, must give 0, so that.*WeightedShards",
        Strict: r"fails with .*unexpected keyword argument.*forward takes \*\*kwargs",
        Forgetful: r"the loss got no loss_weight.*forward takes \*\*kwargs",
    }
    for kind, message in messages.items():
        model = kind.from_pretrained(model_folder).train()
        before = model.loss_function
        with pytest.raises(ShardError, match=message):
            set_loss(LikePeft(model), "sample", arguments())
        assert model.loss_function is before and model.training


def test_a_model_without_a_loss_function_is_refused() -> None:
    for model in (torch.nn.Linear(2, 2), LikeDDP(torch.nn.Linear(2, 2))):
        with pytest.raises(ShardError, match=r"has no loss_function to set.*WeightedShards"):
            set_loss(model, "sample", arguments())


def test_the_balance_of_experts_is_no_fault() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2}
    config = MixtralConfig(vocab_size=20, **sizes, **heads, output_router_logits=True)
    model = MixtralForCausalLM(config)
    set_loss(model, "sample", arguments())
    assert isinstance(model.loss_function, StockLoss)
