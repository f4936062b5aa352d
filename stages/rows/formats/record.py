r"""What every format hands over: one record per row of a file, readable or not, and the JSON rules.

- A key that holds null is no key, at any depth: Arrow pads missing keys with null, so a padded
  row and the same row without padding must be one.
- A bare list of messages is a row that has them as `messages`.
- Of a key that comes twice the last counts.
- NaN, Infinity and numbers beyond a double are no JSON; they are kept, letter by letter, as text
  (`{"score": "NaN"}`), so that `meta` can be read by every JSON reader.
- Values nested in more than 200 levels are rejected as `not_json`.
- A lone surrogate (`"\ud800"`) cannot be written as UTF-8; its row is rejected as `not_utf8`.
"""

import base64
import datetime
import json
import math
import re
from dataclasses import dataclass
from typing import Any

# Later stages read `meta` again, from places where less of Python's stack is left.
MOST_LEVELS = 200

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a file as it was found.

    Attributes
    ----------
    line : int
        Line of the file where it starts, or number of the row in a columnar file; from 1.
    offset : int
        Its first byte in the (decompressed) file, -1 where a format has none.
    value : dict or None
        Its columns, without null keys; None if it cannot be read.
    raw : bytes or None
        Its bytes without the line's end; None for columnar files.
    reason, detail : str
        Why it cannot be read: a word for counting, and the rest.
    """

    line: int
    offset: int
    value: dict[str, Any] | None = None
    raw: bytes | None = None
    reason: str = ""
    detail: str = ""

    def raw_bytes(self) -> bytes:
        """Give the raw bytes, or those of the row's JSON where the format has no bytes of a row."""
        if self.raw is not None:
            return self.raw
        return b"" if self.value is None else json_text(self.value).encode()


def is_utf8(text: str) -> bool:
    """Say whether a text can be written as UTF-8, as one with halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Unreal(str):
    """A number that JSON cannot hold, in the letters of the file; it never counts as text."""

    __slots__ = ()


def _real(digits: str) -> float | Unreal:
    number = float(digits)
    return number if math.isfinite(number) else Unreal(digits)


DECODER = json.JSONDecoder(parse_float=_real, parse_constant=Unreal)


def from_json(raw: bytes, line: int, offset: int) -> Record:
    """Read the bytes of one JSON value; never raises."""
    try:
        value = DECODER.decode(raw.decode())
    except UnicodeDecodeError as error:
        detail = f"byte {error.start} of the row: {error.reason}"
        return Record(line, offset, None, raw, "not_utf8", detail)
    except RecursionError:
        return Record(line, offset, None, raw, "not_json", "nested too deeply")
    except ValueError as error:
        return Record(line, offset, None, raw, "not_json", str(error))
    return from_value(value, raw, line, offset)


def from_value(value: object, raw: bytes, line: int, offset: int) -> Record:
    """Judge a value that was parsed from JSON; never raises."""
    if _is_conversation(value):
        value = {"messages": value}
    if not isinstance(value, dict):
        return Record(line, offset, None, raw, "not_an_object", f"a {type(value).__name__}")
    if raw.count(b"[") + raw.count(b"{") > MOST_LEVELS and is_deeper(value, MOST_LEVELS):
        detail = f"nested too deeply: more than {MOST_LEVELS} levels"
        return Record(line, offset, None, raw, "not_json", detail)
    try:
        if _SURROGATE.search(raw):
            json.dumps(value, ensure_ascii=False).encode()
        columns: dict[str, Any] = without_nulls(value) if b"null" in raw else value
    except UnicodeEncodeError:
        return Record(line, offset, None, raw, "not_utf8", "an escape is half of a surrogate pair")
    return Record(line, offset, columns, raw)


def is_deeper(value: object, levels: int) -> bool:
    """Say whether lists and objects are nested in more than so many levels."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(is_deeper(item, levels - 1) for item in items)


def _is_conversation(value: object) -> bool:
    """Say whether a value is a list of messages, by the keys of each."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) for item in value)
        and all("role" in item or {"from", "value"} <= set(item) for item in value)
    )


def without_nulls(value: Any) -> Any:
    """Drop every key that holds null, at any depth; nulls inside lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def json_text(value: object) -> str:
    """Write any value of any format as JSON text: times in ISO form, bytes as text or base64."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value
