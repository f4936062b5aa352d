"""Parts of the work, what comes back from each, and who does them."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Facts = dict[str, Any]


@dataclass(frozen=True)
class PartSpec:
    """One unit of work: the rows with ids in [start, stop), and the file they go to."""

    index: int
    start: int
    stop: int
    name: str


@dataclass(frozen=True)
class Receipt:
    """What comes back from a finished part: counts only, never rows.

    Attributes
    ----------
    index : int
        Number of the part.
    rows, tokens : int
        Rows and tokens written.
    reused : bool
        True when the part was found finished.
    stats : dict of str to int or float
        Further counts of the stage, for its facts.
    """

    index: int
    rows: int
    tokens: int = 0
    reused: bool = False
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a stage hands back when its last part is written.

    Attributes
    ----------
    parts : tuple of PartSpec
        The parts that make up the artifact, in order.
    facts : dict
        Plain values for the manifest and the summary.
    sides : tuple of str
        Names of further tables in the folder.
    """

    parts: tuple[PartSpec, ...]
    facts: Facts
    sides: tuple[str, ...] = ()


Worker = Callable[[PartSpec], Receipt]
Run = Generator[Receipt, None, Outcome]


class Spread(Protocol):
    """Hands parts to workers and yields their receipts as they come."""

    def __call__(
        self, make: Callable[[], Worker], parts: Sequence[PartSpec], *, uses_gpu: bool
    ) -> Iterator[Receipt]:
        """Run every part; `make` is called once per worker."""


def part_name(index: int) -> str:
    """Name the file of a part."""
    return f"part-{index:05d}.parquet"


def cut(num_rows: int, rows_per_part: int) -> tuple[PartSpec, ...]:
    """Cut row ids 0..num_rows-1 into parts of a fixed size, whoever will work on them."""
    starts = range(0, num_rows, rows_per_part)
    return tuple(
        PartSpec(index, start, min(start + rows_per_part, num_rows), part_name(index))
        for index, start in enumerate(starts)
    )


def total(receipts: Iterable[Receipt], name: str) -> int:
    """Sum one count over receipts."""
    return sum(int(receipt.stats.get(name, 0)) for receipt in receipts)
