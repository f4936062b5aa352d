"""Who trains on which row when, for the world size at hand, in every epoch.

A set of W shards holds S steps of A*B rows a shard. A job of W' ranks keeps those steps:

    W' divides W    a rank reads W / W' shards, one after the other inside each step
    W' = k W        k steps are merged into one; every shard's k blocks go to k ranks
    any other W'    the rows of a step are dealt in order, and ranks that come short get padding

so every step still covers the clusters as promised, and its gradient (with the objective
"sample" or "token") is that of the same rows on W ranks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenshard.shards import ShardError
from evenshard.shardset import ShardSet

PADDING = -1
LENGTH_BUCKETS_PER_DOUBLING = 4

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """The order of an epoch for every rank of a job.

    Parameters
    ----------
    shards : ShardSet
        What is trained on.
    world_size : int, optional
        W', ranks of the job; by default as many as shards.
    micro_batch : int, optional
        B', rows of a rank in one forward pass; by default that of the set.
    seed : int, optional
        Of the epochs after the first; by default that of the set.
    objective : str, optional
        "sample", "token" or "rank"; by default that of the set.

    Raises
    ------
    ShardError
        If the rows of a rank in a step are no multiple of the micro-batch, or the objective is
        "rank" and ranks would get padding or rows of several shards at once.
    """

    shards: ShardSet
    world_size: int = 0
    micro_batch: int = 0
    seed: int = -1
    objective: str = ""

    def __post_init__(self) -> None:
        """Fill in what the set knows, and check that it can be done."""
        defaults = {
            "world_size": self.shards.world_size,
            "micro_batch": self.shards.micro_batch,
            "objective": self.shards.manifest["weights"]["objective"],
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.seed < 0:
            object.__setattr__(self, "seed", self.shards.seed)
        if self.world_size < 1 or self.micro_batch < 1:
            raise ShardError(
                f"world_size={self.world_size} and micro_batch={self.micro_batch} must be >= 1"
            )
        self._check_micro_batch()
        if self.objective == "rank":
            self._check_rank_objective()

    @property
    def steps_merged(self) -> int:
        """How many steps of the set make one of the job."""
        return max(1, self.world_size // self.shards.world_size) if self._fits else 1

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.shards.num_steps // self.steps_merged)

    @property
    def rows_per_rank(self) -> int:
        """Rows of a rank in one step, padding included."""
        rows = self._rows_per_shard * self.shards.world_size * self.steps_merged
        if self._fits:
            return rows // self.world_size
        each = -(-rows // self.world_size)
        return -(-each // self.micro_batch) * self.micro_batch

    @property
    def accumulation(self) -> int:
        """Forward passes of a step, A'."""
        return self.rows_per_rank // self.micro_batch

    @property
    def pads(self) -> bool:
        """Whether some rank gets padding in some step."""
        return not self._fits or self.shards.num_steps % self.steps_merged != 0

    def batches(self, epoch: int, rank: int, start: int = 0) -> Iterator[IntArray]:
        """Yield the micro-batches of one rank, `accumulation` of them a step.

        Parameters
        ----------
        epoch : int
            Epoch 0 is the order of the files; later ones permute whole steps, and rows that
            stand for each other.
        rank : int
            Of the job.
        start : int
            The step to begin with.

        Yields
        ------
        ndarray of shape (micro_batch,), int64
            Numbers of rows, `worker * rows_per_worker + position`; -1 for padding.
        """
        if not 0 <= rank < self.world_size:
            raise ShardError(f"rank={rank} must lie in [0, {self.world_size})")
        order = self.order(epoch)
        for step in range(start, self.num_steps):
            yield from self.lay_out(order, step)[rank].reshape(-1, self.micro_batch)

    def order(self, epoch: int) -> IntArray:
        """Give the rows of an epoch, of shape (num_steps of the set, W, A*B)."""
        shards = self.shards
        rows = np.arange(shards.num_rows, dtype=np.int64).reshape(shards.world_size, -1)
        if epoch > 0:
            rows = np.stack([self._swapped(epoch, worker) for worker in range(shards.world_size)])
        steps: IntArray = rows.reshape(shards.world_size, shards.num_steps, -1).transpose(1, 0, 2)
        return steps if epoch == 0 else steps[self._step_order(epoch)]

    def lay_out(self, order: IntArray, step: int) -> IntArray:
        """Lay one step of the job onto its ranks, of shape (world_size, rows_per_rank)."""
        first = step * self.steps_merged
        merged = order[first : first + self.steps_merged]  # (merged, W, A*B)
        if self._fits and self.world_size > self.shards.world_size:
            missing = self.steps_merged - merged.shape[0]
            if missing:
                gap = np.full((missing, *merged.shape[1:]), PADDING, np.int64)
                merged = np.concatenate([merged, gap])
            return merged.reshape(self.world_size, -1)
        if self._fits:
            # (W, A*B) -> (shards of a rank, W', A*B) -> (W', shards of a rank * A*B)
            by_rank = merged[0].reshape(-1, self.world_size, self._rows_per_shard)
            own: IntArray = by_rank.transpose(1, 0, 2).reshape(self.world_size, -1)
            return own
        flat = np.full(self.world_size * self.rows_per_rank, PADDING, np.int64)
        rows = merged[0].reshape(-1)
        # Ranks are filled evenly: the first ones get one row more where it does not divide.
        counts = np.full(self.world_size, rows.size // self.world_size)
        counts[: rows.size % self.world_size] += 1
        starts = np.repeat(np.arange(self.world_size) * self.rows_per_rank, counts)
        inside = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
        flat[starts + inside] = rows
        return flat.reshape(self.world_size, -1)

    @property
    def _fits(self) -> bool:
        """Whether ranks and shards divide one another."""
        large = max(self.world_size, self.shards.world_size)
        return large % min(self.world_size, self.shards.world_size) == 0

    @property
    def _rows_per_shard(self) -> int:
        return self.shards.micro_batch * self.shards.accumulation

    def _step_order(self, epoch: int) -> IntArray:
        """Permute whole windows of steps, the same for every world size; a rest stays last."""
        window = self.shards.manifest["schedule"]["window_steps"]
        steps = np.arange(self.shards.num_steps)
        full = self.shards.num_steps // window * window
        rng = np.random.default_rng([self.seed, epoch])
        windows = rng.permutation(steps[:full].reshape(-1, window))
        return np.concatenate([windows.reshape(-1), steps[full:]])

    def _swapped(self, epoch: int, worker: int) -> IntArray:
        """Permute rows of one shard among places of the same cluster and like length."""
        clusters = self.shards.cluster[worker]
        lengths = np.maximum(self.shards.num_tokens[worker], 1)
        buckets = np.floor(np.log2(lengths) * LENGTH_BUCKETS_PER_DOUBLING).astype(np.int64)
        rng = np.random.default_rng([self.seed, epoch, worker])
        places = np.lexsort((np.arange(clusters.size), buckets, clusters))
        drawn = np.lexsort((rng.random(clusters.size), buckets, clusters))
        rows = np.empty(clusters.size, np.int64)
        rows[places] = drawn
        return rows + worker * self.shards.rows_per_worker

    def _check_micro_batch(self) -> None:
        rows = self._rows_per_shard * self.shards.world_size * self.steps_merged
        if self._fits and rows // self.world_size % self.micro_batch:
            each = rows // self.world_size
            works = [b for b in range(1, each + 1) if each % b == 0]
            raise ShardError(
                f"micro_batch={self.micro_batch} must divide the {each} rows of a rank in a step; "
                f"with world_size={self.world_size} these work: {', '.join(map(str, works))}"
            )

    def _check_rank_objective(self) -> None:
        shards = self.shards.world_size
        if self.pads:
            works = [w for w in range(1, 4 * shards + 1) if max(w, shards) % min(w, shards) == 0]
            works = [w for w in works if self.shards.num_steps % max(1, w // shards) == 0]
            raise ShardError(
                f'world_size={self.world_size} gives ranks padding, which the objective "rank" '
                f"cannot weigh; these world sizes work: {', '.join(map(str, works))}, or use the "
                f'objective "sample"'
            )
        if self._rows_per_shard % self.micro_batch:
            raise ShardError(
                f"micro_batch={self.micro_batch} must divide {self._rows_per_shard}, the rows of "
                f'a shard in a step: under the objective "rank" a micro-batch holds one cluster'
            )
