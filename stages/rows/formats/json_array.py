"""A JSON array of rows, or objects one after the other, read through a window that slides.

Memory holds the window and one row. Of a row that is broken inside, `broken.py` says where it ends,
and the rows after it are read. A file that ends within a value or an array is `truncated_file`.
The array may lie in an object, as its `data`, `rows` or
a like word behind plain values none of which is a column of a row, and several may stand one after
the other. One object that has
Definition and Instances is a task of Natural-Instructions: it is read whole, and each of its
instances is a row.
"""

import codecs
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stages.rows.formats.broken import extent, head_of
from stages.rows.formats.opening import MAX_ROW_BYTES, opening, trouble
from stages.rows.formats.record import DECODER, Record, from_json, from_value

# Small, since what is wrong with a broken row is told by counting lines from the window's start.
WINDOW_BYTES = 1 << 16
HEAD_CHARS = 1 << 16

_SPACE = re.compile(r"[ \t\r\n\ufeff]*")
_SEPARATORS = re.compile(r"[ \t\r\n,]*")
_COLON = re.compile(r"[ \t\r\n:]*")
_TEXT = r'"(?:[^"\\]++|\\.)*+"'
_PLAIN = rf"(?:{_TEXT}|[\w.+-]++)"
_WRAPPER = re.compile(
    rf"\{{(?:\s*{_TEXT}\s*:\s*{_PLAIN}\s*,)*\s*"
    r'"(?:data|dataset|examples|items|records|rows|samples|train)"\s*:\s*\[(?=\s*[\[{])'
)
# An object that has one of these is a row itself, whatever list it holds.
_COLUMN = re.compile(r'"(?:instruction|prompt|question|problem|input|output|text|answer)"\s*:')
_CONVERSATION = re.compile(r'\[\s*\{\s*"(?:role"\s*:|from"\s*:\s*"[^"]*"\s*,\s*"value"\s*:)')
_NOT_PER_INSTANCE = ("Instances", "Positive Examples", "Negative Examples")


def read(path: Path) -> Iterator[Record]:
    """Read the objects of arrays, or those that stand one after the other."""
    with opening(path) as stream:
        window = _Window(stream)
        wrapper = window.ahead(_WRAPPER) if window.skip(_SPACE) == "{" else None
        if wrapper and not _COLUMN.search(wrapper.group()):
            window.take(wrapper.end())
            yield from _elements(window)
            yield from _beside(window)
        while mark := window.skip(_SEPARATORS):
            if mark == "[" and not window.ahead(_CONVERSATION):
                window.take(window.at + 1)
                yield from _elements(window)
                continue
            record = window.value()
            task = record.value or {}
            if "Definition" in task and isinstance(task.get("Instances"), list):
                yield from _instances(record)
            else:
                yield record
        if trouble(stream)[0] and not window.cut:
            yield window.ended_early(window.line, window.offset, b"")


def _elements(window: "_Window") -> Iterator[Record]:
    """Read the elements of an array whose opening bracket was taken, up to the closing one."""
    while (mark := window.skip(_SEPARATORS)) not in ("", "]"):
        yield window.value()
    if mark:
        window.take(window.at + 1)
    elif not window.cut:
        window.cut = True
        yield window.ended_early(window.line, window.offset, b"")


def _beside(window: "_Window") -> Iterator[Record]:
    """Take the rest of the object that an array of rows lay in; other rows in it are a reject."""
    while window.skip(_SEPARATORS) == '"':
        key = window.value().raw_bytes().decode("utf-8", "replace")
        window.skip(_COLON)
        record = window.value()
        if (record.raw or b"").startswith((b"[{", b"[[")):
            detail = f"{key} stands beside the array of rows, which alone is read"
            yield Record(record.line, record.offset, None, record.raw, "not_the_rows", detail)
    if window.skip(_SPACE) == "}":
        window.take(window.at + 1)
    elif not window.cut:
        window.cut = True
        yield window.ended_early(window.line, window.offset, b"")


def _instances(record: Record) -> Iterator[Record]:
    """Expand a task of Natural-Instructions; what belongs to the task goes with every row."""
    raw = record.raw_bytes()
    task = {k: v for k, v in (record.value or {}).items() if k not in _NOT_PER_INSTANCE}
    window = _Window(io.BytesIO())
    window.line, window.offset, window.text = record.line, record.offset, raw.decode()
    window.take(_behind_key(window.text, "Instances") + 1)
    for instance in _elements(window):
        if instance.value is None:
            yield instance
        else:
            value = {**task, **instance.value}
            yield Record(instance.line, instance.offset, value, instance.raw)


def _behind_key(text: str, wanted: str) -> int:
    """Find where the value of a key begins in the text of a sound object; the last one counts."""
    found = -1
    at = text.index("{") + 1
    while text.startswith('"', at := _end_of(_SEPARATORS, text, at)):
        key, at = DECODER.raw_decode(text, at)
        at = _end_of(_COLON, text, at)
        if key == wanted:
            found = at
        _, at = DECODER.raw_decode(text, at)
    return found


def _end_of(filler: re.Pattern[str], text: str, at: int) -> int:
    match = filler.match(text, at)
    return match.end() if match else at


class _Window:
    """The text of a stream, a piece at a time.

    Attributes
    ----------
    text : str
        What is in memory; bytes that are not UTF-8 are kept as surrogates.
    at : int
        Place in `text` up to which it was taken.
    line, offset : int
        Line and byte of that place in the file.
    cut : bool
        True once the file has ended inside a value.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.text = ""
        self.at = 0
        self.line = 1
        self.offset = 0
        self.cut = False
        self._head = ""  # how the last sound row begins
        self._torn = False  # whether a value had no end

    def more(self) -> bool:
        """Read on and drop what was taken; False at the end of the file."""
        rest = self.text[self.at :]
        chunk = self._stream.read(max(WINDOW_BYTES, len(rest)))
        decoded = self._decoder.decode(chunk, final=not chunk)
        self.text = rest + decoded
        self.at = 0
        return bool(chunk or decoded)  # half a character can be all that is left

    def take(self, end: int) -> bytes:
        """Take the text up to `end`, and count its bytes and lines."""
        raw = self.text[self.at : end].encode("utf-8", "surrogateescape")
        self.line += raw.count(b"\n")
        self.offset += len(raw)
        self.at = end
        return raw

    def skip(self, filler: re.Pattern[str]) -> str:
        """Take filler and give the character after it, or "" at the end of the file."""
        while True:
            self.take(_end_of(filler, self.text, self.at))
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def ahead(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match what comes next, and take nothing."""
        while len(self.text) - self.at < HEAD_CHARS and self.more():
            pass
        return pattern.match(self.text, self.at)

    def value(self) -> Record:
        """Take one value, sound or broken."""
        line, offset = self.line, self.offset
        while True:
            try:
                value, end = DECODER.raw_decode(self.text, self.at)
            except (ValueError, RecursionError):
                short = len(self.text) - self.at < MAX_ROW_BYTES
                end = extent(self.text, self.at, self._head, torn=self._torn)
                if end < 0 and short and self.more():
                    continue
                if end < 0 and not self._torn:
                    self._torn = True
                    end = extent(self.text, self.at, self._head, torn=True)
                if end < 0:
                    return self._endless(line, offset, short=short)
                return from_json(self.take(max(end, self.at + 1)), line, offset)
            if end == len(self.text) and self.more():
                continue
            if isinstance(value, dict | list):
                self._head = head_of(self.text, self.at)
            raw = self.take(end)
            if not isinstance(value, dict) or not _is_utf8(raw):
                return from_json(raw, line, offset)
            return from_value(value, raw, line, offset)

    def _endless(self, line: int, offset: int, *, short: bool) -> Record:
        """Take all that is left as a value that has no end, in the file or within its bounds."""
        self.cut = short and self.text[self.at] in "[{"
        raw = self.take(len(self.text))
        if self.cut:
            return self.ended_early(line, offset, raw)
        if short:
            return from_json(raw, line, offset)
        detail = f"a value of {MAX_ROW_BYTES} characters or more, rejected in pieces"
        return Record(line, offset, None, raw, "row_too_long", detail)

    def ended_early(self, line: int, offset: int, raw: bytes) -> Record:
        """Make the record of a value, or an array, that has no end."""
        reason, detail = trouble(self._stream)
        detail = detail or "there is no closing bracket"
        return Record(line, offset, None, raw, reason or "truncated_file", detail)


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
