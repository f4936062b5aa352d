"""The two errors that are meant for people, and the checks that raise them.

Everything else that is raised is a fault of ours and keeps its traceback.
"""

import difflib
import math
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """A setting is wrong; the message names the key, the value, the relation and the remedy."""


class DataError(ValueError):
    """The rows do not allow what was asked; the message names the numbers and the remedy."""


class DraftGone(RuntimeError):
    """The folder that is being written is no longer there: another run of its key has ended."""


def require(condition: bool, message: str) -> None:
    """Raise `ConfigurationError` with `message` unless `condition` holds."""
    if not condition:
        raise ConfigurationError(message)


def require_one_of(key: str, value: str, options: Iterable[str]) -> None:
    """Check that a setting holds one of a few words, and suggest the nearest if it does not.

    Raises
    ------
    ConfigurationError
        If `value` is not among `options`.
    """
    known = sorted(options)
    if value in known:
        return
    near = difflib.get_close_matches(value, known, n=1)
    hint = f" Did you mean {key}={near[0]}?" if near else ""
    raise ConfigurationError(f"{key}={value} must be one of {', '.join(known)}.{hint}")


def require_at_least(key: str, value: float, least: float) -> None:
    """Check a lower bound of a finite number.

    Raises
    ------
    ConfigurationError
        If `value` is below `least`, infinite or no number.
    """
    finite = "" if abs(value) < math.inf else " and finite"
    require(
        least <= value < math.inf,
        f"{key}={value} must be >= {least}{finite}; set {key}={least} or more",
    )


def require_above_zero(key: str, value: float, usual: str) -> None:
    """Check that a setting is a finite number above 0.

    Parameters
    ----------
    key, value
        The setting.
    usual : str
        The remedy: a value that makes sense, and what it means.

    Raises
    ------
    ConfigurationError
        If it is 0 or below, infinite or no number.
    """
    finite = "" if abs(value) < math.inf else " and finite"
    require(0.0 < value < math.inf, f"{key}={value} must be > 0{finite}; {usual}")


def require_share(key: str, value: float, *, zero_allowed: bool = False) -> None:
    """Check that a setting is a share, in (0, 1] or, where zero is allowed, in [0, 1].

    Raises
    ------
    ConfigurationError
        If `value` lies outside the interval.
    """
    inside = 0.0 <= value <= 1.0 if zero_allowed else 0.0 < value <= 1.0
    interval = "[0, 1]" if zero_allowed else "(0, 1]"
    require(inside, f"{key}={value} must lie in {interval}; 0.5 stands for one half")
