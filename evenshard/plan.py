"""Who trains on which row when, for the world size at hand, in every epoch.

A set of W shards holds S steps of A*B rows a shard. A job of W' ranks keeps those steps:

    W' divides W    a rank reads W / W' shards, one after the other inside each step
    W' = k W        k steps are merged into one; every shard's k blocks go to k ranks
    any other W'    the rows of a step are dealt in order, and ranks that come short get padding

so every step still covers the clusters as promised, and its gradient (with the objective
"sample" or "token") is that of the same rows on W ranks.
Longer than other files, since it also says what would work instead.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from evenshard.shards import OBJECTIVES, ShardError
from evenshard.shardset import PADDING, ShardSet

SAME_WEIGHT = 1e-6  # relative; weights are float32
LENGTH_BUCKETS_PER_DOUBLING = 4
# The least length of each bucket; integers, so that every machine draws the same lines.
BUCKET_STARTS = np.array([math.ceil(2 ** (i / LENGTH_BUCKETS_PER_DOUBLING)) for i in range(124)])

IntArray = npt.NDArray[np.int64]


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
        "rank" and ranks would get padding, or micro-batches of several clusters or weights.
    """

    def __init__(
        self,
        shards: ShardSet,
        world_size: int | None = None,
        micro_batch: int | None = None,
        seed: int | None = None,
        objective: str | None = None,
    ) -> None:
        self.shards = shards
        self.world_size = shards.world_size if world_size is None else world_size
        self.micro_batch = shards.micro_batch if micro_batch is None else micro_batch
        self.seed = shards.seed if seed is None else seed
        stated = shards.manifest["weights"]["objective"]
        self.objective = objective or stated
        least = {"world_size": 1, "micro_batch": 1, "seed": 0}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ShardError(
                    f"{name}={getattr(self, name)} must be >= {value}; leave it out to take the "
                    f"set's, {getattr(shards, name)}"
                )
        if self.objective not in OBJECTIVES:
            raise ShardError(f"objective={self.objective!r} must be one of {', '.join(OBJECTIVES)}")
        self._check_micro_batch()
        if self.objective == "rank":
            self._check_rank_objective()

    def __repr__(self) -> str:
        return (
            f"Plan({self.shards.folder}, world_size={self.world_size}, "
            f"micro_batch={self.micro_batch}, seed={self.seed}, objective={self.objective!r})"
        )

    @property
    def steps_merged(self) -> int:
        """How many steps of the set make one of the job."""
        return max(1, self.world_size // self.shards.world_size) if self._fits else 1

    @property
    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.shards.num_steps // self.steps_merged)

    @property
    def window_steps(self) -> int:
        """Steps of the job that hold the clusters in proportion."""
        window = self.shards.manifest["schedule"]["window_steps"]
        return math.lcm(window, self.steps_merged) // self.steps_merged

    @property
    def rows_per_step(self) -> int:
        """Real rows of a whole step over all ranks, M."""
        return self._rows_per_shard * self.shards.world_size * self.steps_merged

    @property
    def rows_per_rank(self) -> int:
        """Rows of a rank in one step, padding included."""
        each = -(-self.rows_per_step // self.world_size)
        return -(-each // self.micro_batch) * self.micro_batch

    @property
    def accumulation(self) -> int:
        """Forward passes of a step, A'."""
        return self.rows_per_rank // self.micro_batch

    @property
    def pads(self) -> bool:
        """Whether some rank gets padding in some step."""
        whole = self.rows_per_rank * self.world_size == self.rows_per_step
        return not whole or self.shards.num_steps % self.steps_merged != 0

    @property
    def padding_share(self) -> float:
        """Share of the places of an epoch that no row has: passes that teach nothing."""
        places = self.num_steps * self.rows_per_rank * self.world_size
        return 1 - self.shards.num_rows / places

    def rows_in_step(self, step: int) -> int:
        """Count the real rows of a step over all ranks, D of the objective "sample".

        It is `rows_per_step`, or less in a last step that merges fewer steps of the set.
        """
        self._check_step(step, self.num_steps - 1)
        merged = min(self.steps_merged, self.shards.num_steps - step * self.steps_merged)
        return merged * self._rows_per_shard * self.shards.world_size

    def batches(self, epoch: int, rank: int, start: int = 0) -> Iterator[IntArray]:
        """Give the micro-batches of one rank, `accumulation` of them a step.

        Parameters
        ----------
        epoch : int
            Epoch 0 is the order of the files; later ones permute whole windows of steps, and
            rows that stand for each other.
        rank : int
            Of the job.
        start : int
            The optimizer step to begin with.

        Returns
        -------
        iterator of ndarray of shape (micro_batch,), int64
            Numbers of rows, `worker * rows_per_worker + position`; -1 for padding.
        """
        if epoch < 0:
            raise ShardError(f"epoch={epoch} must be >= 0")
        self._check_step(start, self.num_steps)
        order = self.order(epoch, self.workers_of(rank))
        return (
            batch
            for step in range(start, self.num_steps)
            for batch in self._rank_rows(order, rank, step).reshape(-1, self.micro_batch)
        )

    def workers_of(self, rank: int) -> list[int]:
        """List the shards that a rank reads."""
        if not 0 <= rank < self.world_size:
            raise ShardError(f"rank={rank} must lie in [0, {self.world_size}), the plan's ranks")
        size = self.shards.world_size
        if self._fits:
            return list(range(rank % size, size, self.world_size))
        first, stop = self._dealt_range(rank)
        each = self._rows_per_shard
        return list(range(first // each, -(-stop // each))) if stop > first else []

    def order(self, epoch: int, workers: Sequence[int] | None = None) -> IntArray:
        """Give the rows of an epoch, of shape (num_steps of the set, workers, A*B).

        Parameters
        ----------
        epoch : int
            Of training.
        workers : sequence of int, optional
            The shards to give; by default all W.
        """
        shards = self.shards
        chosen = range(shards.world_size) if workers is None else workers
        rows = np.array([self._shard_rows(epoch, worker) for worker in chosen], np.int64)
        # (workers, S * A*B) -> (S, workers, A*B)
        by_step = rows.reshape(len(chosen), shards.num_steps, self._rows_per_shard)
        steps: IntArray = by_step.transpose(1, 0, 2)
        return steps if epoch == 0 else steps[self._step_order(epoch)]

    def lay_out(self, order: IntArray, step: int) -> IntArray:
        """Lay one step onto the ranks, of shape (world_size, rows_per_rank).

        `order` is that of all W shards.
        """
        self._check_step(step, self.num_steps - 1)
        return np.stack(
            [
                self._rank_rows(order[:, self.workers_of(rank)], rank, step)
                for rank in range(self.world_size)
            ]
        )

    @property
    def _fits(self) -> bool:
        """Whether ranks and shards divide one another."""
        large = max(self.world_size, self.shards.world_size)
        return large % min(self.world_size, self.shards.world_size) == 0

    @property
    def _rows_per_shard(self) -> int:
        return self.shards.micro_batch * self.shards.accumulation

    def _rank_rows(self, order: IntArray, rank: int, step: int) -> IntArray:
        """Give the rows of a rank in a step, of shape (rows_per_rank,), from its own shards'."""
        block = rank // self.shards.world_size if self._fits else 0
        set_step = step * self.steps_merged + block
        rows = np.full(self.rows_per_rank, PADDING, np.int64)
        if set_step >= len(order):
            return rows
        own = order[set_step].reshape(-1)
        if not self._fits:
            first, stop = self._dealt_range(rank)
            skipped = first % self._rows_per_shard  # `own` begins with a whole shard's block
            own = own[skipped : skipped + stop - first]
        rows[: own.size] = own
        return rows

    def _dealt_range(self, rank: int) -> tuple[int, int]:
        """Give which of a step's rows a rank gets, where ranks and shards do not divide."""
        # Ranks are filled evenly: the first ones get one row more where it does not divide.
        each, rest = divmod(self.rows_per_step, self.world_size)
        first = rank * each + min(rank, rest)
        return first, first + each + (rank < rest)

    def _step_order(self, epoch: int) -> IntArray:
        """Permute whole windows of steps, the same for every world size; a rest stays last."""
        window = self.shards.manifest["schedule"]["window_steps"]
        steps = np.arange(self.shards.num_steps)
        full = self.shards.num_steps // window * window
        rng = np.random.default_rng([self.seed, epoch])
        windows = rng.permutation(steps[:full].reshape(-1, window))
        return np.concatenate([windows.reshape(-1), steps[full:]])

    def _shard_rows(self, epoch: int, worker: int) -> IntArray:
        """Permute rows of one shard among places of the same cluster and like length."""
        size = self.shards.rows_per_worker
        rows = np.arange(size, dtype=np.int64)
        if epoch > 0:
            clusters = self.shards.shard_column(worker, "cluster")
            lengths = self.shards.shard_column(worker, "num_tokens")
            buckets = np.searchsorted(BUCKET_STARTS, lengths, side="right")
            keys = np.random.default_rng([self.seed, epoch, worker]).random(size)
            places = np.lexsort((buckets, clusters))
            rows[places] = np.lexsort((keys, buckets, clusters))
        return rows + worker * size

    @property
    def agreed(self) -> str:
        """What to say once every rank was found to follow it."""
        padding = f", {self.padding_share:.0%} of the places padding" if self.pads else ""
        return (
            f"{self.world_size} ranks agree with the plan: {self.num_steps} steps of "
            f"{self.rows_in_step(0)} rows an epoch{padding}"
        )

    def _check_step(self, step: int, most: int) -> None:
        if not 0 <= step <= most:
            raise ShardError(
                f"step={step} must lie in [0, {most}]: an epoch of {self.world_size} ranks has "
                f"{self.num_steps} steps"
            )

    def _check_micro_batch(self) -> None:
        if self._fits and self.rows_per_rank * self.world_size != self.rows_per_step:
            each = self.rows_per_step // self.world_size
            works = [b for b in range(1, each + 1) if each % b == 0]
            raise ShardError(
                f"micro_batch={self.micro_batch} must divide the {each} rows of a rank in a step; "
                f"with world_size={self.world_size} these work: {', '.join(map(str, works))}; for "
                f"others curate again, such as `make reshard ARGS=allocate.micro_batch="
                f"{self.micro_batch}`"
            )

    def _check_rank_objective(self) -> None:
        shards, each = self.shards, self._rows_per_shard
        if self.pads:
            works = [w for w in range(1, 4 * shards.world_size + 1) if self._divides(w)]
            raise ShardError(
                f'world_size={self.world_size} gives ranks padding, which the objective "rank" '
                f"cannot weigh; these world sizes work: {', '.join(map(str, works))}, or use the "
                f'objective "sample"'
            )
        remedy = 'use the objective "sample", or curate with allocate.schedule=pinned'
        kind = shards.manifest["schedule"]["kind"]
        if kind != "pinned":
            raise ShardError(f'objective="rank" needs schedule.kind=pinned, not {kind}; {remedy}')
        if each % self.micro_batch:
            raise ShardError(
                f"micro_batch={self.micro_batch} must divide {each}, the rows of a shard in a "
                f'step: under the objective "rank" a micro-batch holds rows of one shard'
            )
        clusters = shards.cluster.reshape(-1, self.micro_batch)  # (micro-batches, B')
        mixed = np.flatnonzero((clusters != clusters[:, :1]).any(axis=1))
        if mixed.size:
            found = sorted(set(clusters[mixed[0]].tolist()))
            raise ShardError(
                f'objective="rank" needs micro-batches of one cluster, {mixed.size} of '
                f"{len(clusters)} hold several, the first {found}; {remedy} and "
                f"cluster.num_clusters={shards.world_size}"
            )
        if self.micro_batch > 1:
            self._check_rank_weights()

    def _check_rank_weights(self) -> None:
        """Refuse rows of unlike weights that meet in a micro-batch, in whichever epoch.

        Later epochs permute the rows of a cluster, so all of a shard's must be alike.
        """
        shards = self.shards
        for worker in range(shards.world_size):
            weights, row_ids = (shards.shard_column(worker, n) for n in ("weight", "row_id"))
            clusters = shards.shard_column(worker, "cluster")
            _, firsts, group = np.unique(clusters, return_index=True, return_inverse=True)
            first = firsts[group]  # of every row, the first one of its cluster
            gap = np.abs(weights.astype(np.float64) - weights[first])
            other = np.flatnonzero(gap > SAME_WEIGHT * weights[first])
            if other.size:
                row, like = int(other[0]), int(first[other[0]])
                raise ShardError(
                    f'objective="rank" needs rows of one weight in a micro-batch: in '
                    f"{shards.folder}, worker {worker}, row_id={row_ids[row]} has "
                    f"weight={weights[row]:g} and row_id={row_ids[like]} of the same cluster "
                    f"{weights[like]:g} ({other.size} rows differ); use the objective "
                    f'"sample", or curate with allocate.objective=rank and '
                    f"allocate.micro_batch={self.micro_batch}, which levels them"
                )

    def _divides(self, world_size: int) -> bool:
        """Whether a world size gives each rank whole blocks of shards, and no padding."""
        shards = self.shards
        large, small = max(world_size, shards.world_size), min(world_size, shards.world_size)
        return large % small == 0 and shards.num_steps % max(1, world_size // small) == 0
