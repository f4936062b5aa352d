"""Low-rank adapters (LoRA, arXiv 2106.09685) beside the linear layers of attention."""

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from stages.contract.errors import ConfigurationError

ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
SCALE = 2.0  # alpha / rank


class LowRank(nn.Module):
    """A frozen linear layer W with a learnt update: W x + 2 B (A x), with B = 0 at the start.

    Attributes
    ----------
    base : nn.Linear
        The frozen layer.
    down : nn.Parameter of shape (rank, in_features), float32
        A.
    up : nn.Parameter of shape (out_features, rank), float32
        B.
    """

    def __init__(self, base: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        device = base.weight.device
        # Drawn on the CPU, so that every device starts from the same numbers.
        down = torch.randn(rank, base.in_features, generator=generator) / base.in_features**0.5
        self.down = nn.Parameter(down.to(device))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer and its update, the update in float32."""
        update = (x.float() @ self.down.T) @ self.up.T
        found: Tensor = self.base(x)
        return found + (SCALE * update).to(found.dtype)


def add_adapters(model: nn.Module, rank: int, seed: int) -> dict[str, LowRank]:
    """Freeze a model and put an adapter beside each linear layer of its attention, in place.

    Parameters
    ----------
    model : nn.Module
        Whose linear layers inside modules named like `attn` or `attention` are adapted.
    rank : int
        Rank of each update.
    seed : int
        Of the first numbers of A.

    Returns
    -------
    dict of str to LowRank
        By the name of the layer, in the order of the model.

    Raises
    ------
    ConfigurationError
        If there is no such layer.
    """
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    wanted = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and ATTENTION.search(name)
    ]
    if not wanted:
        raise ConfigurationError(
            f"trajectory.steps: {type(model).__name__} has no linear layers in its attention, so "
            f"there is nothing to warm up; set trajectory.steps=0, or give a trained model by "
            f"reference.path"
        )
    adapters = {name: LowRank(module, rank, generator) for name, module in wanted}
    for name, adapter in adapters.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, adapter)
    return adapters


def matrices_of(adapters: Mapping[str, LowRank]) -> Iterator[tuple[str, nn.Parameter]]:
    """Name both matrices of every adapter, `<layer>.down` and `<layer>.up`, in order."""
    for name, adapter in adapters.items():
        yield f"{name}.down", adapter.down
        yield f"{name}.up", adapter.up


def state_of(adapters: Mapping[str, LowRank]) -> dict[str, Tensor]:
    """Copy the learnt numbers of all adapters to the CPU, by the names of the matrices."""
    return {name: matrix.detach().cpu().clone() for name, matrix in matrices_of(adapters)}


def set_state(adapters: Mapping[str, LowRank], state: Mapping[str, Tensor]) -> None:
    """Put the numbers of a checkpoint into the adapters."""
    with torch.no_grad():
        for name, matrix in matrices_of(adapters):
            matrix.copy_(state[name])
