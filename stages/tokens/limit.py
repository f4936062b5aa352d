"""A bound on the time of a template: a program of somebody else, that may loop for ever.

The sandbox of transformers keeps a template from running code and from a range above 100,000;
two loops of 100,000 inside each other it lets run for hours.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SECONDS = 10.0


class TooSlow(RuntimeError):
    """A template took too long."""


@contextlib.contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Stop what runs inside after so many seconds of this process's own computing.

    Computing is counted, not waiting, so that a busy machine refuses no more than an idle one. Only
    a main thread can be stopped so; elsewhere there is no bound. One single operation of
    Python, such as a power of large numbers, cannot be stopped: `choose_template` refuses it.

    Raises
    ------
    TooSlow
        When the time is over.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        raise TooSlow(f"it took more than {seconds:g} s of computing")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
