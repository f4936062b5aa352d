"""The line that moves: parts, rows, rates, time left; plain lines without a terminal."""

import io
import logging

import pytest

from pipeline import progress
from pipeline.progress import LineHandler, Progress, clock, compact
from stages.contract.parts import Receipt


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def advance(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = progress.time.monotonic()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now + seconds)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (9999, "9999"), (12345, "12.3k"), (1234567, "1.2M"), (3e9, "3.0G")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert compact(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59, "59s"), (61, "1m01s"), (3600, "1h00m"), (6660, "1h51m")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_the_line_tells_parts_rows_rates_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Progress("embed", Terminal())
    line.expect(4)
    advance(monkeypatch, 10.0)
    line.add(Receipt(0, rows=100, tokens=20_000))
    text = line.line()
    assert "1/4 parts" in text and "100 rows" in text and "10 rows/s" in text
    assert "2000 tokens/s" in text and "eta 30s" in text


def test_the_rate_forgets_the_start_once_parts_lie_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Progress("embed", Terminal())
    line.expect(9)
    advance(monkeypatch, 60.0)  # a model is loaded
    line.add(Receipt(0, rows=100, tokens=1000))
    for index in range(1, 5):
        advance(monkeypatch, 5.0)
        line.add(Receipt(index, rows=100, tokens=1000))
    text = line.line()
    # Four parts in the 20 s since the first one; five in 80 s would leave 1m04s.
    assert "20 rows/s" in text and "200 tokens/s" in text and "eta 20s" in text


def test_reused_parts_count_as_done_but_not_as_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Progress("embed", Terminal())
    line.add(Receipt(0, rows=50, tokens=5_000, reused=True))
    line.expect(1)
    advance(monkeypatch, 5.0)
    assert "1/2 parts" in line.line() and "rows/s" not in line.line()
    line.add(Receipt(1, rows=50, tokens=5_000))
    assert "2/2 parts" in line.line() and "1000 tokens/s" in line.line()


def test_a_terminal_gets_one_moving_line_that_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    line = Progress("embed", terminal)
    line.expect(2)
    for index in range(2):
        advance(monkeypatch, 1.0)
        line.add(Receipt(index, rows=1))
    line.finish()
    written = terminal.getvalue()
    assert "\n" not in written
    assert written.count("\r\033[K") == 3 and written.endswith("\r\033[K")


def test_a_quiet_log_keeps_the_terminal_still(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terminal = Terminal()
    with caplog.at_level(logging.ERROR):
        line = Progress("embed", terminal)
        advance(monkeypatch, 60.0)
        line.add(Receipt(0, rows=1))
        line.finish()
    assert terminal.getvalue() == "" and caplog.messages == []


def test_a_log_line_clears_the_moving_line_on_a_terminal_only() -> None:
    for stream, written in ((Terminal(), "\r\033[Ksaid\n"), (io.StringIO(), "said\n")):
        handler = LineHandler(stream)
        handler.emit(logging.LogRecord("x", logging.INFO, "", 0, "said", None, None))
        assert stream.getvalue() == written


def test_a_log_gets_plain_lines_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = io.StringIO()
    line = Progress("embed", stream)
    line.expect(3)
    with caplog.at_level(logging.INFO):
        line.add(Receipt(0, rows=1))
        assert caplog.messages == []
        advance(monkeypatch, 20.0)
        line.add(Receipt(1, rows=1))
    line.finish()
    assert len(caplog.messages) == 1 and "2/3 parts" in caplog.messages[0]
    assert stream.getvalue() == ""
