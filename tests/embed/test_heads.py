"""The head's gradient by autograd, for every kind of head that the split allows."""

import types
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402

from stages.embed.features import row_features  # noqa: E402
from stages.embed.model import _logit_adjustment  # noqa: E402
from stages.embed.sketch import make_sketch  # noqa: E402

VOCAB, HIDDEN, COUNTS = 50, 12, [1, 4, 7]
# What the config of a family says of its head; large hidden states reach the caps.
HEADS = {
    "plain": {},
    "scaled": {"logit_scale": 0.0625},
    "divided": {"logits_scaling": 8.0},
    "capped": {"final_logit_softcapping": 30.0},
    "capped low": {"final_logit_softcapping": 5.0},
    "scaled and capped": {"logit_scale": 0.5, "final_logit_softcapping": 10.0},
}


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("told", HEADS.values(), ids=HEADS)
def test_features_are_those_of_the_gradient(told: dict[str, float], biased: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator).requires_grad_()
    bias = torch.randn(VOCAB, generator=generator) if biased else torch.zeros(VOCAB)
    hidden = 4.0 * torch.randn(sum(COUNTS), HIDDEN, generator=generator)
    targets = torch.randint(0, VOCAB, (sum(COUNTS),), generator=generator)
    adjust, slope = _logit_adjustment(types.SimpleNamespace(**told))  # type: ignore[arg-type]

    def head(states: Tensor) -> Tensor:
        products = states @ weight.T + bias
        return adjust(products) if adjust else products

    sketch = make_sketch(
        VOCAB, HIDDEN, sketch_vocab=16, sketch_hidden=8, seed=0, device=torch.device("cpu")
    )
    with torch.no_grad():
        found = row_features(
            hidden,
            targets,
            COUNTS,
            head,
            names=["target_row", "head_sketch"],
            chunk=5,
            sketches={"head_sketch": sketch},
            slope=slope,
        )
    gradients = gradients_of(head, weight, hidden, targets)
    norms = gradients.flatten(1).norm(dim=1)
    own_rows = gradients[torch.arange(len(targets)), targets]
    start = 0
    for row, count in enumerate(COUNTS):
        here = slice(start, start + count)
        start += count
        mean = gradients[here].mean(0)
        folded = (sketch.vocab_map.T @ mean @ sketch.hidden_map).flatten()
        assert close(found.features["head_sketch"][row], folded)
        assert close(found.features["target_row"][row], own_rows[here].mean(0))
        assert close(found.signals["head_grad_norm"][row], norms[here].mean())
        probabilities = head(hidden[here]).softmax(1).detach()
        probabilities[torch.arange(count), targets[here]] -= 1.0
        assert close(found.signals["el2n"][row], probabilities.norm(dim=1).mean())
        bound = (norms[here] / hidden[here].norm(dim=1)).square().mean() / count
        assert close(found.signals["grad_norm_bound"][row], bound.sqrt())


def gradients_of(
    head: Callable[[Tensor], Tensor], weight: Tensor, hidden: Tensor, targets: Tensor
) -> Tensor:
    """Take the gradient of each position's loss in the head, of shape (P, V, H)."""
    losses = torch.nn.functional.cross_entropy(head(hidden), targets, reduction="none")
    return torch.stack([torch.autograd.grad(loss, weight, retain_graph=True)[0] for loss in losses])


def close(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).norm() <= 1e-4 * expected.norm() + 1e-7)
