"""What a checkpoint of the HF Trainer must remember, so that a restart goes on with the next row.

Trainer finds its place again by counting steps, and compares neither the rows nor the ranks nor
the accumulation with those that it was saved with. A file beside its own does.
"""

import json
import logging
from pathlib import Path
from typing import TypedDict, cast

from evenshard.plan import Plan
from evenshard.shards import ShardError

log = logging.getLogger(__name__)

ORDER_NAME = "evenshard.json"


class TrainedOrder(TypedDict):
    """Which rows a checkpoint's steps were made of."""

    fingerprint: str
    seed: int
    world_size: int
    micro_batch: int
    gradient_accumulation_steps: int
    set_steps: int  # steps of the set in one optimizer step


def keep_order(checkpoint: Path, plan: Plan, gradient_accumulation_steps: int) -> None:
    """Write into a checkpoint which rows its steps were made of."""
    order = order_of(plan, gradient_accumulation_steps)
    (checkpoint / ORDER_NAME).write_text(json.dumps(order, indent=2) + "\n", encoding="utf-8")


def order_of(plan: Plan, gradient_accumulation_steps: int) -> TrainedOrder:
    """Say which rows the steps of a job are made of."""
    return {
        "fingerprint": plan.shards.fingerprint,
        "seed": plan.seed,
        "world_size": plan.world_size,
        "micro_batch": plan.micro_batch,
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "set_steps": plan.steps_merged * (gradient_accumulation_steps // plan.accumulation),
    }


def check_resume(checkpoint: Path, plan: Plan, gradient_accumulation_steps: int) -> None:
    """Refuse a checkpoint whose steps are not those of this job.

    Raises
    ------
    ShardError
        If it was trained on another set or seed, or an optimizer step of it was made of more or
        fewer steps of the set than one of this job: the steps that Trainer skips would be other
        rows than those that were trained.
    """
    path = checkpoint / ORDER_NAME
    if not path.is_file():
        log.warning(
            "%s has no %s, so nobody can tell whether it was trained on these rows by such a job",
            checkpoint,
            ORDER_NAME,
        )
        return
    theirs = cast(TrainedOrder, json.loads(path.read_text(encoding="utf-8")))
    ours = order_of(plan, gradient_accumulation_steps)
    if (theirs["fingerprint"], theirs["seed"]) != (ours["fingerprint"], ours["seed"]):
        raise ShardError(
            f"{checkpoint} was trained on the set with fingerprint={theirs['fingerprint']} and "
            f"seed={theirs['seed']}, {plan.shards.folder} has {ours['fingerprint']} and "
            f"{ours['seed']}: the steps that it skips are other rows; resume with the folder that "
            f"it was trained on, or start from its weights without resume_from_checkpoint"
        )
    if theirs["set_steps"] != ours["set_steps"]:
        raise ShardError(
            f"{checkpoint} has {theirs['set_steps']} steps of the set in each optimizer step "
            f"({theirs['world_size']} ranks, gradient_accumulation_steps="
            f"{theirs['gradient_accumulation_steps']}), this job {ours['set_steps']} "
            f"({plan.world_size} ranks, {gradient_accumulation_steps}): it would go on with other "
            f"rows than the next ones; {_remedy(theirs, plan)}"
        )


def _remedy(theirs: TrainedOrder, plan: Plan) -> str:
    wanted = theirs["set_steps"]
    if wanted % plan.steps_merged:
        return f"resume on {theirs['world_size']} ranks"
    accumulation = wanted // plan.steps_merged * plan.accumulation
    return f"set gradient_accumulation_steps={accumulation}"
