"""One line per stage that moves on a terminal, and a plain line now and then elsewhere."""

import logging
import sys
import time
from typing import TextIO

from stages.contract.parts import Receipt

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 15.0
SECONDS_BETWEEN_MOVES = 0.2
# What must lie behind the first part for the rate to count from there.
SECONDS_OF_RATE, PARTS_OF_RATE = 10.0, 4


CLEAR_LINE = "\r\033[K"


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes log lines; on a terminal it clears the moving line first."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record on a line of its own."""
        if self.stream.isatty():
            self.stream.write(CLEAR_LINE)
        super().emit(record)


def compact(number: float) -> str:
    """Shorten a number for reading: 1234567 -> 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{number / scale:.1f}{unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """Write a duration: 59s, 12m30s, 1h51m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress:
    """How far a stage is, told as it goes.

    Parameters
    ----------
    stage : str
        Its name.
    stream : file, optional
        Where lines go; standard error by default. A terminal gets one moving line, unless the
        log is quiet.
    """

    def __init__(self, stage: str, stream: TextIO | None = None) -> None:
        self.stage = stage
        self.stream = stream or sys.stderr
        self.moves = self.stream.isatty() and log.isEnabledFor(logging.WARNING)
        self.started = time.monotonic()
        self.last_told = self.started
        self.parts = self.reused = self.rows = self.tokens = 0
        self.new_rows = self.new_tokens = 0
        self.expected = 0
        self.drawn = False
        # When the first part was there, and what had been made by then: rates count from it as
        # soon as they can, since a worker may take a minute to load its model.
        self.first: tuple[float, int, int, int] | None = None

    def expect(self, parts: int) -> None:
        """Learn that so many more parts are to come."""
        self.expected += parts

    def add(self, receipt: Receipt) -> None:
        """Count a finished part and tell it, if it is time."""
        self.parts += 1
        self.rows += receipt.rows
        self.tokens += receipt.tokens
        if receipt.reused:
            self.reused += 1
        else:
            self.expected -= 1
            self.new_rows += receipt.rows
            self.new_tokens += receipt.tokens
        now = time.monotonic()
        if self.first is None and not receipt.reused:
            self.first = (now, self.new_rows, self.new_tokens, self.parts - self.reused)
        pause = SECONDS_BETWEEN_MOVES if self.moves else SECONDS_BETWEEN_LINES
        if now - self.last_told >= pause:
            self.last_told = now
            self._tell()

    def line(self) -> str:
        """Write how far it is: parts, rows, tokens, rates and the time left."""
        now = time.monotonic()
        since, rows, tokens, parts = self.first or (now, 0, 0, 0)
        fresh = self.parts - self.reused
        if now - since < SECONDS_OF_RATE or fresh - parts < PARTS_OF_RATE:
            since, rows, tokens, parts = self.started, 0, 0, 0
        seconds = max(now - since, 1e-6)
        left = max(self.expected, 0)
        words = [f"{self.stage:<9}{self.parts}/{self.parts + left} parts"]
        words.append(f"{compact(self.rows)} rows")
        if self.new_rows:
            words.append(f"{compact((self.new_rows - rows) / seconds)} rows/s")
        if self.new_tokens:
            words.append(f"{compact((self.new_tokens - tokens) / seconds)} tokens/s")
        if left and fresh:
            words.append(f"eta {clock(seconds / (fresh - parts) * left)}")
        return "  ".join(words)

    def finish(self) -> None:
        """Leave the terminal's line, so that the next one begins anew."""
        if self.drawn:
            self.stream.write(CLEAR_LINE)
            self.stream.flush()

    def _tell(self) -> None:
        if self.moves:
            self.stream.write(f"{CLEAR_LINE}{self.line()}")
            self.stream.flush()
            self.drawn = True
        else:
            log.info("%s", self.line())
