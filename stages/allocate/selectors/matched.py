"""Rows and weights whose weighted mean gradient is that of all rows, in every cluster and over all.

Ours. Why it works, and when it does not, is in docs/methods.md.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stages.allocate.candidates import Budget, Candidates, IntArray, subset
from stages.allocate.groups import blocks_of, members_of, read_rows
from stages.allocate.inclusion import defensive, inclusion_probabilities, systematic
from stages.allocate.matching import Group, at_least_effective, calibrate, exchange
from stages.allocate.quota import proportional
from stages.allocate.weights import effective_sample_size, heirs, shared_mass, to_mean_one
from stages.contract.errors import require_above_zero, require_at_least, require_share

log = logging.getLogger(__name__)

Array = npt.NDArray[np.float64]
Read = Callable[[IntArray], npt.NDArray[np.float32]]

# Rows of a cluster that are mixed with each other, and whose features are in memory at once.
ROWS_PER_STRETCH = 32_768
# Chances aim at a little more than the least effective sample size, since quotas are whole rows.
MARGIN = 1.02
# A share is at most 1, so a bound above that is none, and a huge one would only cost digits.
LARGEST_BOUND = 8.0


@dataclass(kw_only=True)
class Matched:
    """Draw rows by the size of their gradients, exchange and weigh them until the means match.

    Quotas follow the chances, so a cluster of large or diverse gradients gives more rows, and
    the weights undo that: each cluster carries its share of the original rows exactly. A row that
    is worth more than `max_weight` by its own copies is kept and weighs just that; what follows is
    done with the others. Clusters
    of more than `group_rows` rows are cut into random groups; the error that a group leaves is
    handed to the next one. Rows are mixed inside stretches of 32,768 rows of a cluster, so time is
    linear in the rows (the features are read once, and once more for each cluster), and memory
    is that of the features of one stretch.

    Attributes
    ----------
    feature : str
        What is matched: head_sketch (the gradient), or another feature of the pass.
    power : float
        Chances are in proportion to norm ** power: 0 for equal ones, 1 for those that alone
        would leave the least error.
    ridge : float
        How strongly weights are held to what the chances say, against fitting the sketch's noise:
        the penalty of a row is ridge * (1 + within) times its squared norm.
    within : float
        How much the error inside each cluster counts beside that of the whole.
    least_effective : float
        The effective sample size of the weights is at least this share of the rows, as far as the
        mean weights of the clusters allow; rows above `max_weight` do not count.
    max_weight : float
        Bound of a weight, where the mean is 1 and the quota of its cluster allows; inf for none.
    group_rows : int
        Rows that are matched together, at most.
    """

    ratio_of: ClassVar[str] = "candidates"

    feature: str = "head_sketch"
    power: float = 0.75
    ridge: float = 0.3
    within: float = 1.0
    least_effective: float = 0.5
    max_weight: float = 8.0
    group_rows: int = 1024

    def __post_init__(self) -> None:
        """Check each field by itself."""
        for name in ("power", "within"):
            require_at_least(f"allocate.selector.{name}", getattr(self, name), 0)
        require_above_zero("allocate.selector.ridge", self.ridge, "0.3 is the default")
        require_share("allocate.selector.least_effective", self.least_effective)
        if self.max_weight != math.inf:
            require_at_least("allocate.selector.max_weight", self.max_weight, 1)
        require_at_least("allocate.selector.group_rows", self.group_rows, 2)

    def select(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, Array]:
        """Choose exactly `budget.num_rows` rows."""
        share = candidates.multiplicity / candidates.multiplicity.sum()
        alone = np.flatnonzero(share > self.max_weight / budget.num_rows)
        if alone.size:
            rows, weights = self._beside(alone, share, candidates, budget, rng)
        else:
            rows, weights = self._choose(candidates, budget, rng)
        effective = effective_sample_size(weights)
        log.info(
            "allocate: matched %s, effective sample size %.1f%%, largest weight %.2f",
            *(self.feature, 100.0 * effective, weights.max()),
        )
        if effective < self.least_effective - 1e-9:
            log.warning(
                "allocate: effective sample size %.1f%% is below allocate.selector.least_effective"
                "=%g: copies, or clusters that hardly any kept row stands for, need unequal "
                "weights; keep more rows, or take fewer clusters",
                *(100.0 * effective, self.least_effective),
            )
        return rows, weights

    def _beside(
        self,
        alone: IntArray,
        share: Array,
        candidates: Candidates,
        budget: Budget,
        rng: np.random.Generator,
    ) -> tuple[IntArray, Array]:
        """Choose among the others, beside rows that stand for their own copies alone."""
        own = budget.num_rows * share[alone]
        log.info(
            "allocate: %d rows are worth more than allocate.selector.max_weight=%g by themselves, "
            "up to %.1f; they are kept and count just that",
            *(alone.size, self.max_weight, own.max()),
        )
        others = np.setdiff1d(np.arange(share.size), alone, assume_unique=True)
        left = replace(budget, num_rows=budget.num_rows - alone.size)
        # What the mean weight of the others is worth; the bound is that of the weights in the end.
        worth = (budget.num_rows - own.sum()) / left.num_rows
        same = replace(self, max_weight=self.max_weight / worth)
        places, found = same._choose(subset(candidates, others), left, rng)
        rows = np.concatenate([alone, others[places]])
        order = np.argsort(rows)
        return rows[order], np.concatenate([own, worth * found])[order]

    def _choose(
        self, candidates: Candidates, budget: Budget, rng: np.random.Generator
    ) -> tuple[IntArray, Array]:
        """Choose rows none of which is worth more than `max_weight` by its copies."""
        share = candidates.multiplicity / candidates.multiplicity.sum()
        norms = feature_norms(candidates, self.feature)
        fits = partial(self._bearable, share, candidates)
        chances = defensive(share * norms**self.power, share, budget.num_rows, fits)
        draws = candidates.draw(rng)
        kept, carried, even = [], [], []
        left: Array | float = 0.0
        groups = self._groups(candidates, chances, draws, budget)
        for pieces, read in with_features(groups, candidates, self.feature):
            rows, shares, left = self._match(read, pieces, share, chances, left, budget)
            kept.append(rows)
            carried.append(shares)
            even += [np.full(p.quota, share[p.rows].sum() / p.quota) for p in pieces]
        rows = np.concatenate(kept)
        order = np.argsort(rows, kind="stable")
        rows, weights = rows[order], to_mean_one(np.concatenate(carried)[order])
        level = to_mean_one(np.concatenate(even)[order])
        return rows, at_least_effective(weights, level, self.least_effective)

    def _bearable(self, share: Array, candidates: Candidates, chances: Array) -> bool:
        """Whether weights of share over chance are as even as was asked, rows and clusters alike.

        In the mean over draws the squares of the weights, of mean 1, sum to (rows kept)^2 times
        the sum of share^2 / chance.
        """
        count = float(chances.sum())
        least = min(1.0, MARGIN * self.least_effective)
        mass = np.bincount(candidates.cluster, share)
        quotas = np.bincount(candidates.cluster, chances)
        some = quotas > 0  # an infinite bound times none is no number
        return bool(
            count * (share**2 / chances).sum() * least <= 1.0 + 1e-9
            and np.all(count * mass[some] <= self.max_weight * quotas[some])
        )

    def _groups(
        self, candidates: Candidates, chances: Array, draws: Array, budget: Budget
    ) -> Iterator[list["Piece"]]:
        """Cut clusters into pieces, and gather pieces of small clusters into groups."""
        members = members_of(candidates)
        amounts = np.array([chances[own].sum() for own in members])
        quotas = proportional(amounts, candidates.sizes(), budget.num_rows)
        shared_mass(candidates, quotas, budget.on_empty_quota)  # tells of empty ones, or stops
        heir = heirs(quotas, candidates.mass(), candidates.centers)
        joined = [
            np.concatenate([members[c] for c in np.flatnonzero(heir == k)]) if q else None
            for k, q in enumerate(quotas.tolist())
        ]
        group: list[Piece] = []
        size = 0
        for own, quota in zip(joined, quotas.tolist(), strict=True):
            if own is None:
                continue
            for piece in self._pieces(own, quota, chances, draws):
                if group and size + piece.choice.size > self.group_rows:
                    yield group
                    group, size = [], 0
                group.append(piece)
                size += piece.choice.size
        yield group

    def _pieces(self, own: IntArray, quota: int, chances: Array, draws: Array) -> Iterator["Piece"]:
        """Cut one cluster at random; of a piece that is still too large, choose from a part."""
        count = min(quota, -(-own.size // self.group_rows))
        mixed = own[np.lexsort((draws[own], np.arange(own.size) // ROWS_PER_STRETCH))]
        parts = np.array_split(mixed, count)
        sizes = np.array([part.size for part in parts])
        amounts = np.array([chances[part].sum() for part in parts])
        for part, rows in zip(parts, proportional(amounts, sizes, quota).tolist(), strict=True):
            choice = np.arange(part.size)
            if part.size > self.group_rows:
                most = max(self.group_rows, rows)
                choice = systematic(inclusion_probabilities(chances[part], most), 0.5)
            yield Piece(part, part[choice], rows)

    def _match(
        self,
        read: Read,
        pieces: list["Piece"],
        share: Array,
        chances: Array,
        left: Array | float,
        budget: Budget,
    ) -> tuple[IntArray, Array, Array]:
        """Match one group; give its kept rows, their shares, and the error that is left."""
        choice = np.concatenate([piece.choice for piece in pieces])
        cluster = np.repeat(np.arange(len(pieces)), [piece.choice.size for piece in pieces])
        targets = np.stack([weighted_sum(read, p.rows, share) for p in pieces])
        features = read_any_order(read, choice)
        products = features @ features.T
        pull = features @ (targets.sum(axis=0) - left)
        if self.within > 0:
            ends = np.cumsum([piece.choice.size for piece in pieces])
            for piece, end in zip(pieces, ends.tolist(), strict=True):
                own = slice(end - piece.choice.size, end)
                products[own, own] *= 1.0 + self.within
            pull += self.within * np.einsum("ij,ij->i", features, targets[cluster])
        group = Group(
            products=products,
            pull=pull,
            cluster=cluster,
            wanted=np.array([share[piece.rows].sum() for piece in pieces]),
            prior=share[choice] / chances[choice],
        )
        drawn = np.concatenate([first_draw(chances[piece.choice], piece.quota) for piece in pieces])
        kept = exchange(group, drawn)
        shares = calibrate(
            group,
            kept,
            ridge=self.ridge,
            least=0.02 / budget.num_rows,
            most=min(self.max_weight / budget.num_rows, LARGEST_BOUND),
        )
        error: Array = left + shares @ features[kept] - targets.sum(axis=0)
        return choice[kept], shares, error


@dataclass(frozen=True)
class Piece:
    """Rows of one cluster that are matched in one group.

    Attributes
    ----------
    rows : ndarray of int64
        Positions of all rows whose sum is to be matched.
    choice : ndarray of int64
        Those of them that can be kept.
    quota : int
        How many are.
    """

    rows: IntArray
    choice: IntArray
    quota: int


def first_draw(chances: Array, quota: int) -> npt.NDArray[np.bool_]:
    """Draw `quota` rows, about as likely as their chances say; rows come in a random order.

    Only the order is random: the steps of the draw start in the middle of the first. Large pieces
    meet the chances closely, small ones do not: of two rows of chances 0.1 and 0.9 the second is
    always drawn.
    """
    kept = np.zeros(chances.size, bool)
    kept[systematic(inclusion_probabilities(chances, quota), 0.5)] = True
    return kept


def feature_norms(candidates: Candidates, feature: str) -> Array:
    """Measure the length of every row's feature, block by block."""
    norms = np.empty(candidates.num_rows)
    for block in blocks_of(np.arange(candidates.num_rows)):
        rows = read_rows(candidates, feature, block).astype(np.float64)
        norms[block] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    return norms


def with_features(
    groups: Iterator[list[Piece]], candidates: Candidates, feature: str
) -> Iterator[tuple[list[Piece], Read]]:
    """Give each group a way to read its features, which are read for many groups at once.

    The rows of a group lie anywhere in their stretch: read group by group, the whole table would
    be read for each of them.
    """
    held: list[list[Piece]] = []
    size = 0
    for pieces in groups:
        num_rows = sum(piece.rows.size for piece in pieces)
        if held and size + num_rows > ROWS_PER_STRETCH:
            yield from _with_held(held, candidates, feature)
            held, size = [], 0
        held.append(pieces)
        size += num_rows
    yield from _with_held(held, candidates, feature)


def _with_held(
    groups: list[list[Piece]], candidates: Candidates, feature: str
) -> Iterator[tuple[list[Piece], Read]]:
    rows = np.sort(np.concatenate([piece.rows for pieces in groups for piece in pieces]))
    if rows.size > ROWS_PER_STRETCH:  # one piece, too large to be held
        yield from ((pieces, partial(read_rows, candidates, feature)) for pieces in groups)
        return
    features = read_rows(candidates, feature, rows)

    def read(positions: IntArray) -> npt.NDArray[np.float32]:
        return features[np.searchsorted(rows, positions)]

    yield from ((pieces, read) for pieces in groups)


def weighted_sum(read: Read, rows: IntArray, share: Array) -> Array:
    """Sum share times feature over some rows, block by block."""
    total: Array | float = 0.0
    for block in blocks_of(np.sort(rows)):
        total = total + share[block] @ read(block).astype(np.float64)
    assert isinstance(total, np.ndarray)
    return total


def read_any_order(read: Read, rows: IntArray) -> Array:
    """Read a feature of rows that stand in any order."""
    order = np.argsort(rows, kind="stable")
    values = read(rows[order])
    found = np.empty(values.shape)
    found[order] = values
    return found
