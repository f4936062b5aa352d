"""The weighted loss by hand, against dense float64, and on average over an epoch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from evenshard import loss as losses  # noqa: E402
from evenshard.loss import (  # noqa: E402
    step_denominator,
    token_losses,
    weighted_loss,
)
from evenshard.shards import ShardError  # noqa: E402
from tests.evenshard.tiny_training import (  # noqa: E402
    collated,
    explicit_gradient,
    flat_gradient,
    load_model,
    plan_of,
    relative_error,
    row_loss,
    steps_of,
    write_uneven_set,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices are slower on several threads, many times so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_by_hand() -> None:
    # Two words; the right one has probability 3/4 after the first token and 1/2 after the second.
    logits = torch.log(torch.tensor([[[1.0, 3.0], [5.0, 5.0], [1.0, 1.0]]]))
    labels = torch.tensor([[0, 1, 0]])
    found = token_losses(logits, labels)
    assert torch.allclose(found, torch.log(torch.tensor([[1.0, 4 / 3, 2.0]])))
    loss_weight = torch.tensor([[9.0, 2.0, 0.5]])
    loss = weighted_loss(logits, labels, loss_weight, denominator=4.0, world_size=3)
    expected = 3 * (2 * torch.log(torch.tensor(4 / 3)) + 0.5 * torch.log(torch.tensor(2.0))) / 4
    assert torch.allclose(loss, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 40, 10**6])
def test_losses_and_gradients_are_those_of_cross_entropy(
    dtype: Any, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "_CHUNK_NUMBERS", chunk)
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(3, 7, 11, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(0, 11, (3, 7), generator=generator)
    labels[torch.rand(3, 7, generator=generator) < 0.3] = -100
    weight = torch.rand(3, 7, generator=generator)
    found = token_losses(logits, labels)
    (weight * found).sum().backward()

    exact = logits.detach().double().requires_grad_()
    dense = torch.nn.functional.cross_entropy(
        exact[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none", ignore_index=-100
    )
    (weight[:, 1:] * dense).sum().backward()
    assert (found[:, 0] == 0).all() and (found[labels == -100] == 0).all()
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5}[dtype]
    assert torch.allclose(found[:, 1:].double(), dense, atol=tolerance)
    # The gradient of bf16 logits is rounded to bf16, to 8 bits; nothing else is.
    assert logits.grad.dtype == dtype
    tolerance = max(tolerance, 2**-8 if dtype == torch.bfloat16 else 0)
    assert relative_error(logits.grad.double(), exact.grad) < tolerance


def test_gradient_passes_gradcheck() -> None:
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[0, 1, -100], [2, -100, 3]])
    assert torch.autograd.gradcheck(lambda x: token_losses(x, labels), logits)


def test_nothing_trained_gives_zero_gradients() -> None:
    logits = torch.randn(1, 3, 4, requires_grad=True)
    token_losses(logits, torch.full((1, 3), -100)).sum().backward()
    assert (logits.grad == 0).all()


def test_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_CHUNK_NUMBERS", 33)  # several chunks
    logits = torch.randn(2, 5, 11, requires_grad=True)
    labels = torch.tensor([[-100, 1, 2, 3, -100], [-100, -100, 4, 5, 6]])
    weight = torch.rand(2, 5)

    def loss_of(scores: Any) -> Any:
        return weighted_loss(scores, labels, weight, denominator=2.0, world_size=1)

    found, expected = torch.compile(loss_of, backend="aot_eager")(logits), loss_of(logits)
    slopes = [torch.autograd.grad(loss, logits)[0] for loss in (found, expected)]
    assert torch.equal(found, expected) and torch.equal(*slopes)
    torch._dynamo.reset()


def test_shapes_must_agree() -> None:
    with pytest.raises(ShardError, match=r"logits of shape \(1, 4, 9\).*labels of shape \(1, 3\)"):
        token_losses(torch.zeros(1, 4, 9), torch.zeros(1, 3, dtype=torch.int64))


def train_one_process(model: Any, step: Any, objective: str) -> Any:
    """Do what each rank does with its micro-batches, and average the gradients as DDP does."""
    ranks = collated(step, objective)
    denominator = step_denominator([batch for rank in ranks for batch in rank])
    model.zero_grad()
    for batch in (batch for rank in ranks for batch in rank):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        loss = weighted_loss(
            logits,
            batch["labels"],
            batch["loss_weight"],
            denominator=denominator,
            world_size=len(ranks),
        )
        (loss / len(ranks)).backward()
    return flat_gradient(model)


@pytest.mark.parametrize("lognormal", [False, True])
@pytest.mark.parametrize("objective", ["sample", "token"])
def test_a_step_gives_the_explicit_gradient(
    objective: str, lognormal: bool, tmp_path: Path, model_folder: Path
) -> None:
    plan = plan_of(write_uneven_set(tmp_path / "set", lognormal=lognormal))
    model, exact = load_model(model_folder), load_model(model_folder, torch.float64)
    other = {"sample": "token", "token": "sample"}[objective]
    for step in steps_of(plan):
        found = train_one_process(model, step, objective)
        assert relative_error(found, explicit_gradient(exact, step, objective)[0]) < 1e-5
        assert relative_error(found, explicit_gradient(exact, step, other)[0]) > 1e-2


def test_rank_objective(tmp_path: Path, model_folder: Path) -> None:
    plan = plan_of(write_uneven_set(tmp_path / "set", kept=(12, 12), pinned=True))
    model, exact = load_model(model_folder), load_model(model_folder, torch.float64)
    step = steps_of(plan)[0]
    found = train_one_process(model, step, "rank")
    assert relative_error(found, explicit_gradient(exact, step, "rank")[0]) < 1e-5
    assert relative_error(found, explicit_gradient(exact, step, "token")[0]) > 1e-2


@pytest.mark.parametrize("lognormal", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_an_epoch_sums_to_the_weighted_set(
    world_size: int, lognormal: bool, tmp_path: Path, model_folder: Path
) -> None:
    """DESIGN's identity: sum over steps of M * grad_step = sum over rows of w_i * grad L_i."""
    folder = write_uneven_set(tmp_path / "set", lognormal=lognormal)  # K = 3, W = 2
    plan = plan_of(folder, world_size)
    model = load_model(model_folder, torch.float64)
    total = 0
    for step in steps_of(plan, epoch=1):
        rows = sum(bool(row["weight"] > 0) for rank in step for batch in rank for row in batch)
        total = total + rows * train_one_process(model, step, "sample")
    model.zero_grad()
    for step in steps_of(plan_of(folder)):
        for row in (row for rank in step for batch in rank for row in batch):
            summed, targets = row_loss(model, row)
            (row["weight"].double() * summed / targets).backward()
    # Weights are float32 in a batch; all else is float64.
    assert relative_error(total, flat_gradient(model)) < 1e-6


def test_the_local_sum_of_weights_cancels_them(tmp_path: Path, model_folder: Path) -> None:
    """The trap: with one weight a rank, normalising by it gives the unweighted gradient."""
    plan = plan_of(write_uneven_set(tmp_path / "set", kept=(12, 12), pinned=True))
    model, exact = load_model(model_folder), load_model(model_folder, torch.float64)
    step = steps_of(plan)[0]
    ranks = collated(step, "token")
    model.zero_grad()
    for batch in (batch for rank in ranks for batch in rank):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        local = batch["loss_weight"].sum() * sum(map(len, ranks))
        weighted_loss(
            logits, batch["labels"], batch["loss_weight"], denominator=local, world_size=1
        ).backward()
    unweighted = [
        [[{**row, "weight": torch.tensor(1.0)} for row in batch] for batch in rank] for rank in step
    ]
    found = flat_gradient(model)
    assert relative_error(found, explicit_gradient(exact, unweighted, "rank")[0]) < 1e-5
    for objective in ("sample", "token", "rank"):
        assert relative_error(found, explicit_gradient(exact, step, objective)[0]) > 1e-2
