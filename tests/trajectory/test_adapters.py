"""Adapters: nothing at first, what the formula says after, and only inside attention."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stages.contract.errors import ConfigurationError
from stages.trajectory.adapters import LowRank, add_adapters, set_state, state_of


def layer(weight: list[list[float]], rank: int = 1) -> LowRank:
    base = nn.Linear(len(weight[0]), len(weight), bias=False)
    with torch.no_grad():
        base.weight.copy_(torch.tensor(weight))
    return LowRank(base, rank, torch.Generator().manual_seed(0))


def test_the_update_by_hand() -> None:
    adapter = layer([[1.0, 2.0], [0.0, 1.0]])
    x = torch.tensor([[3.0, 1.0]])
    assert adapter(x).tolist() == [[5.0, 1.0]]  # up is 0, so nothing is added
    with torch.no_grad():
        adapter.down.copy_(torch.tensor([[1.0, -1.0]]))
        adapter.up.copy_(torch.tensor([[0.5], [2.0]]))
    # down x = 2, times 2 for the scale, times up.
    assert adapter(x).tolist() == [[5.0 + 2.0, 1.0 + 8.0]]


def test_the_update_keeps_the_number_format_of_the_layer() -> None:
    adapter = layer([[1.0, 2.0]])
    adapter.base.to(torch.bfloat16)
    assert adapter(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert adapter.down.dtype == adapter.up.dtype == torch.float32


@pytest.fixture
def whole(model_folder: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(model_folder).eval()


def test_only_attention_learns_and_the_model_is_as_it_was(whole: Any) -> None:
    ids = torch.arange(8)[None]
    with torch.no_grad():
        before = whole(ids).logits
        adapters = add_adapters(whole, 2, seed=0)
        assert torch.equal(whole(ids).logits, before)
    assert sorted(name.rpartition(".")[2] for name in adapters) == sorted(
        ["q_proj", "k_proj", "v_proj", "o_proj"] * 2
    )
    learnt = [name for name, p in whole.named_parameters() if p.requires_grad]
    assert len(learnt) == 2 * len(adapters)
    assert all(name.endswith((".down", ".up")) for name in learnt)


def test_a_state_comes_back(whole: Any) -> None:
    adapters = add_adapters(whole, 2, seed=0)
    first = state_of(adapters)
    with torch.no_grad():
        for adapter in adapters.values():
            adapter.up.add_(1.0)
    assert any(not torch.equal(first[name], now) for name, now in state_of(adapters).items())
    set_state(adapters, first)
    assert all(torch.equal(first[name], now) for name, now in state_of(adapters).items())


def test_the_seed_decides_the_first_numbers(model_folder: Path) -> None:
    import transformers

    states = [
        state_of(
            add_adapters(transformers.AutoModelForCausalLM.from_pretrained(model_folder), 2, seed)
        )
        for seed in (0, 0, 1)
    ]
    name = next(iter(states[0]))
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"trajectory\.steps: Sequential has no linear"):
        add_adapters(nn.Sequential(nn.Linear(2, 2)), 1, seed=0)
