"""The order of a plan as a torch batch sampler that can stop and go on anywhere.

A position is counted in steps of the set, so that it means the same to any number of ranks.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypedDict, cast

from evenshard.plan import Plan
from evenshard.shards import ShardError

try:
    from torch.utils.data import Sampler
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "torch":
        raise
    raise ImportError(
        "sampling shards for a torch loader needs torch, which is not installed; "
        "get it with `pip install torch`"
    ) from error


class SamplerState(TypedDict):
    """Where an epoch stands: plain numbers and words, the same on every rank.

    `step` counts steps of the set, `micro_batches` those of the step that is not done.
    """

    fingerprint: str
    seed: int
    epoch: int
    step: int
    micro_batches: int
    world_size: int
    micro_batch: int


class ShardSampler(Sampler[list[int]]):
    """The micro-batches of one rank, as lists of row numbers for `SetRows`.

    Give it to a loader as `batch_sampler`, and call `set_epoch` before each epoch; without it the
    same epoch comes again.

    Parameters
    ----------
    plan : Plan
        The plan of the job.
    rank : int
        The global rank of this process.

    Notes
    -----
    `state_dict` tells which micro-batches were handed to the loader. With `num_workers=0` these
    are the ones that were trained. A plain DataLoader with workers prefetches
    `num_workers * prefetch_factor` micro-batches (and Accelerate's loader one), so the state runs
    ahead: give the steps that were trained, `state_dict(step)`, and it is exact.
    torchdata's StatefulDataLoader keeps the state that belongs to each batch itself.

    A state resumes on any number of ranks, if it lies between two steps of both jobs. The
    resumed position holds for the first iteration; the next begin at step 0.
    Accelerate's loader sets the epoch from its own count: call its `set_epoch` after resuming.
    """

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan = plan
        self.rank = rank
        self.epoch = 0
        self.batch_size = plan.micro_batch  # trainers ask batch samplers for these two
        self.drop_last = False
        self._begin = 0  # micro-batch at which the next iteration begins
        self._next = 0  # micro-batch that is handed out next
        plan.workers_of(rank)  # refuses a rank that is not the plan's

    @property
    def sampler(self) -> "ShardSampler":
        """Itself: Lightning and Accelerate look for `set_epoch` at `batch_sampler.sampler`."""
        return self

    @property
    def begin(self) -> int:
        """The micro-batch of the epoch at which the next iteration begins."""
        return self._begin

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to hand out; another one than before begins at step 0."""
        if epoch < 0:
            raise ShardError(f"epoch={epoch} must be >= 0")
        if epoch != self.epoch:
            self.epoch = epoch
            self._begin = self._next = 0

    def set_step(self, step: int) -> None:
        """Let the next iteration begin at an optimizer step of this epoch."""
        self._begin = self._next = self._micro_batches(step)

    def __len__(self) -> int:
        """Count the micro-batches of a whole epoch."""
        return self.plan.num_steps * self.plan.accumulation

    def __iter__(self) -> Iterator[list[int]]:
        # The position is taken now, the epoch when the first batch is asked for: some loaders
        # make their iterator before they set the epoch.
        epoch, begin = self.epoch, self._begin
        self._begin, self._next = 0, begin
        return self._hand_out(epoch, begin)

    def _hand_out(self, epoch: int, begin: int) -> Iterator[list[int]]:
        begin = begin if epoch == self.epoch else 0
        step, skipped = divmod(begin, self.plan.accumulation)
        batches = self.plan.batches(self.epoch, self.rank, step)
        for index, batch in enumerate(islice(batches, skipped, None), begin + 1):
            self._next = index
            yield batch.tolist()

    def state_dict(self, step: int | None = None) -> SamplerState:
        """Give the position as plain numbers.

        Parameters
        ----------
        step : int, optional
            Optimizer steps of this epoch that were trained; by default what the loader took.
        """
        done = self._next if step is None else self._micro_batches(step)
        steps, micro_batches = divmod(done, self.plan.accumulation)
        return {
            "fingerprint": self.plan.shards.fingerprint,
            "seed": self.plan.seed,
            "epoch": self.epoch,
            "step": min(steps * self.plan.steps_merged, self.plan.shards.num_steps),
            "micro_batches": micro_batches,
            "world_size": self.plan.world_size,
            "micro_batch": self.plan.micro_batch,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where a state stands, of this job or of one with other ranks.

        Raises
        ------
        ShardError
            If the state is of another set or seed, or lies inside a step of this job.
        """
        found = _checked(state)
        self._check_order(found)
        plan, step = self.plan, found["step"]
        steps, rest = divmod(step, plan.steps_merged)
        if rest and step < plan.shards.num_steps:
            works = [k for k in range(1, plan.steps_merged) if step % k == 0]
            raise ShardError(
                f"the state has step={step}, which must be a multiple of {plan.steps_merged}, the "
                f"steps that {plan.world_size} ranks merge into one; resume on "
                f"{' or '.join(str(k * plan.shards.world_size) for k in works)} ranks, or set its "
                f"step to {step - rest} and train {rest} again"
            )
        done = (steps + (rest > 0)) * plan.accumulation + found["micro_batches"]
        if done > len(self):
            raise ShardError(
                f"the state has step={step} and micro_batches={found['micro_batches']}, an epoch "
                f"has {plan.shards.num_steps} steps; resume from a state that was not altered"
            )
        if done == len(self) and self.epoch == found["epoch"] + 1:
            done = 0  # StatefulDataLoader loads after set_epoch: the next epoch was asked for
        else:
            self.epoch = found["epoch"]
        self._begin = self._next = done

    def _micro_batches(self, step: int) -> int:
        if not 0 <= step <= self.plan.num_steps:
            raise ShardError(
                f"step={step} must lie in [0, {self.plan.num_steps}], the steps of an epoch"
            )
        return step * self.plan.accumulation

    def _check_order(self, state: SamplerState) -> None:
        """Refuse a state of other rows, or one inside a window that this job does not have."""
        plan = self.plan
        fingerprint = plan.shards.fingerprint
        if (state["fingerprint"], state["seed"]) != (fingerprint, plan.seed):
            raise ShardError(
                f"the state has fingerprint={state['fingerprint']} and seed={state['seed']}, the "
                f"plan {fingerprint} and {plan.seed}: the orders of rows differ; resume with the "
                f"folder and seed that it was saved with"
            )
        theirs = state["world_size"], state["micro_batch"]
        if state["micro_batches"] and theirs != (plan.world_size, plan.micro_batch):
            raise ShardError(
                f"the state lies inside an accumulation window (micro_batches="
                f"{state['micro_batches']} of step {state['step']}, {theirs[0]} ranks, "
                f"micro_batch={theirs[1]}), which {plan.world_size} ranks with micro_batch="
                f"{plan.micro_batch} cut otherwise; save after an optimizer step, as "
                f"state_dict(step) does, or resume with the numbers it was saved with"
            )
        if state["micro_batches"] >= plan.accumulation:
            raise ShardError(
                f"the state has micro_batches={state['micro_batches']}, must be < "
                f"{plan.accumulation}, the micro-batches of a step; resume from a state that was "
                f"not altered"
            )


def _checked(state: Mapping[str, object]) -> SamplerState:
    """Take a state for what it says it is, or say what is missing."""
    missing = [name for name in SamplerState.__annotations__ if name not in state]
    if missing:
        raise ShardError(
            f"the state lacks {', '.join(missing)}: it is none of ShardSampler.state_dict; "
            "resume with set_epoch and set_step instead"
        )
    for name in ("epoch", "step", "micro_batches"):
        value = state[name]
        if not isinstance(value, int) or value < 0:
            raise ShardError(
                f"the state has {name}={value!r}, must be a whole number >= 0; "
                "resume from a state that was not altered"
            )
    return cast(SamplerState, state)
