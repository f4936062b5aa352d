"""What a selector reads, against what the passes make: a mistake costs a second, not a pass."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stages.contract.errors import require
from stages.contract.schemas import ALONE_LOSS, SIGNALS
from stages.embed.stage import FEATURES
from stages.trajectory.stage import GRADIENTS

EMBEDDING = "embedding"  # what was clustered, as it was clustered: always there
TRAJECTORY = "trajectory"
REFERENCE, TARGETS = "reference.", "targets."
OF_TOKENS = ("num_tokens", "num_targets")
VECTORS = (EMBEDDING, *FEATURES, TRAJECTORY, GRADIENTS)  # a feature has many numbers a row
SCORES = (*SIGNALS, *OF_TOKENS, ALONE_LOSS)  # and a signal one


@dataclass(frozen=True)
class Offer:
    """What the passes of a configuration make.

    Attributes
    ----------
    features : tuple of str
        Features of the main pass, without the judge, which no selector may see.
    answer_alone : bool
        Whether the pass takes the loss of the answer without its prompt.
    reference : tuple of str
        Signals of a second model; empty where there is none.
    targets : bool
        Whether there are rows that the user wants to do well on.
    trajectory : bool
        Whether there is a warm-up with its losses.
    gradients : bool
        Whether it takes the gradients of rows, too; of target rows as well, where there are any.
    """

    features: tuple[str, ...]
    answer_alone: bool = False
    reference: tuple[str, ...] = ()
    targets: bool = False
    trajectory: bool = False
    gradients: bool = False


def needs_of(selector: Any) -> tuple[str, ...]:
    """List what a selector reads: features and signals by name, targets as `targets.<feature>`.

    A selector says it by a method `needs`; for one without, it is its options `feature` and
    `signal`, those of them that it has.
    """
    if hasattr(selector, "needs"):
        named: tuple[str, ...] = selector.needs()
        return named
    return tuple(getattr(selector, key) for key in ("feature", "signal") if hasattr(selector, key))


def check_needs(selector: Any, offer: Offer) -> None:
    """Check that the passes make all that a selector reads, before any of them runs.

    Raises
    ------
    ConfigurationError
        Naming each thing that is missing and the key that makes it.
    """
    check_kinds(selector)
    missing = [name for name in dict.fromkeys(needs_of(selector)) if not is_made(name, offer)]
    name = type(selector).__module__.rpartition(".")[2]
    for unknown in (each for each in missing if not is_known(each)):
        near = difflib.get_close_matches(unknown, (*VECTORS, *SCORES), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        require(
            False,
            f"allocate.selector={name} reads {unknown}, which is not what a selector can read; "
            f"{hint}Features are {', '.join(FEATURES)}, signals {', '.join(SIGNALS)}",
        )
    also = [each.removeprefix(TARGETS) for each in missing]
    remedies = [remedy(each, offer, also) for each in missing]
    require(
        not missing,
        f"allocate.selector={name} reads {' and '.join(missing)}, which no pass makes; "
        f"set {' and '.join(dict.fromkeys(each for parts in remedies for each in parts))}",
    )


def check_kinds(selector: Any) -> None:
    """Check that the option `feature` names no signal, and the option `signal` no feature.

    Raises
    ------
    ConfigurationError
        Naming those that would do.
    """
    feature, signal = getattr(selector, "feature", None), getattr(selector, "signal", None)
    require(
        feature is None or not is_score(feature),
        f"allocate.selector.feature={feature} is a signal, one number of a row, and must be a "
        f"feature; set it to one of {', '.join(VECTORS)}",
    )
    require(
        signal is None or signal not in VECTORS,
        f"allocate.selector.signal={signal} is a feature, many numbers of a row, and must be a "
        f"signal; set it to one of {', '.join(SCORES)}, or to reference.loss and the like",
    )


def is_score(name: str) -> bool:
    """Say whether it is a signal that some pass could make."""
    return name in SCORES or (
        name.startswith(REFERENCE) and name.removeprefix(REFERENCE) in SIGNALS
    )


def is_known(name: str) -> bool:
    """Say whether some pass could make it."""
    if name.startswith(TARGETS):
        return name.removeprefix(TARGETS) in (GRADIENTS, *FEATURES)
    return name in VECTORS or is_score(name)


def is_made(name: str, offer: Offer) -> bool:
    """Say whether the passes of an offer make it."""
    if name.startswith(TARGETS):
        return offer.targets and is_made_by_a_pass(name.removeprefix(TARGETS), offer)
    if name.startswith(REFERENCE):
        return name.removeprefix(REFERENCE) in offer.reference
    return (
        name in (EMBEDDING, *SIGNALS, *OF_TOKENS)
        or is_made_by_a_pass(name, offer)
        or (name == ALONE_LOSS and offer.answer_alone)
        or (name == TRAJECTORY and offer.trajectory)
    )


def is_made_by_a_pass(feature: str, offer: Offer) -> bool:
    """Say whether there is a feature that target rows have as well, if there are any."""
    return offer.gradients if feature == GRADIENTS else feature in offer.features


def remedy(name: str, offer: Offer, wanted: Sequence[str]) -> list[str]:
    """Name the keys that make what is missing; `wanted` is all that is."""
    if name == ALONE_LOSS:
        return ["embed.answer_alone=true"]
    if name == TRAJECTORY:
        return ["trajectory.steps=60"]
    if name.startswith(REFERENCE):
        another = " (the warm-up gives only reference.loss)" if offer.reference else ""
        return [f"reference.path=<a second model>{another}"]
    keys = []
    feature = name.removeprefix(TARGETS)
    if feature == GRADIENTS:
        keys += [] if offer.trajectory else ["trajectory.steps=60"]
        keys += [] if offer.gradients else ["trajectory.gradient_dim=1024"]
    elif feature not in offer.features:
        more = [each for each in FEATURES if each in wanted and each not in offer.features]
        keys.append(f"embed.also=[{','.join([*offer.features[1:], *more])}]")
    if name.startswith(TARGETS) and not offer.targets:
        keys.append("targets.path=<rows to do well on>")
    return keys
