"""What a stage is, and how it works through its parts."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.contract.artifact import Artifact
from stages.contract.draft import Draft
from stages.contract.parts import Facts, PartSpec, Receipt, Run, Spread, Worker


@dataclass(frozen=True)
class Stage:
    """One room: what it is called, what it reads, how its settings are named, how it runs.

    Attributes
    ----------
    name : str
        Name of the stage and of its section in the configuration.
    version : int
        Raised whenever a change of code changes the stage's numbers.
    reads : tuple of str
        Stages whose artifacts it reads; the first decides which row ids may appear.
    identity : callable
        settings -> plain values that decide the bytes.
    run : callable
        (settings, inputs, draft, spread) -> generator of receipts that returns an `Outcome`.
    keeps_order : bool
        False where parts hold rows in another order than by row id.
    may_read : tuple of str
        Further artifacts that it reads where there are any; only then are they in its key.
    """

    name: str
    version: int
    reads: tuple[str, ...]
    identity: Callable[[Any], Facts]
    run: Callable[[Any, Mapping[str, Artifact], Draft, Spread], Run]
    keeps_order: bool = True
    may_read: tuple[str, ...] = ()

    def inputs_of(self, artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
        """Pick what it reads out of the artifacts of a run."""
        there = (name for name in self.may_read if name in artifacts)
        return {name: artifacts[name] for name in (*self.reads, *there)}


def work_through(
    draft: Draft,
    parts: Sequence[PartSpec],
    make: Callable[[], Worker],
    spread: Spread,
    *,
    uses_gpu: bool = False,
) -> Generator[Receipt, None, list[Receipt]]:
    """Yield the receipts of parts found finished, then of the others as they are made.

    Returns
    -------
    list of Receipt
        All receipts in order of the parts.
    """
    receipts: dict[int, Receipt] = {}
    missing = []
    for spec in parts:
        found = draft.finished(spec)
        if found is None:
            missing.append(spec)
        else:
            receipts[spec.index] = found
            yield found
    if missing:
        for receipt in spread(make, missing, uses_gpu=uses_gpu):
            receipts[receipt.index] = receipt
            yield receipt
    return [receipts[spec.index] for spec in parts]
