"""Benchmark files: found before any work, read into one table of words."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stages.contract.errors import ConfigurationError, DataError, require
from stages.rows.folders import is_beside_data, matching, root_of, some_of
from stages.rows.formats import known_suffixes, read_file, suffix_of
from stages.screen.leaks import LeakIndex, Text, needed
from stages.screen.text import bare_words

log = logging.getLogger(__name__)

WORDS = pa.schema(
    [("benchmark", pa.int64()), ("line", pa.int64()), ("words", pa.list_(pa.large_string()))]
)


@dataclass(frozen=True)
class Benchmark:
    """A file of a test set, under the name by which facts and evidence call it."""

    name: str
    path: Path


@dataclass
class BenchmarkFacts:
    """What was read of a file.

    Attributes
    ----------
    items : int
        Lines or records that were read.
    too_short : int
        Items with no text long enough to be matched.
    unreadable : int
        Lines that could not be read: what they hold is not looked for.
    unreadable_bytes : int
        Bytes of these lines.
    """

    items: int = 0
    too_short: int = 0
    unreadable: int = 0
    unreadable_bytes: int = 0


def find_benchmarks(patterns: Sequence[str]) -> tuple[Benchmark, ...]:
    """Find the files that `screen.benchmarks` means; reads none of them.

    Raises
    ------
    ConfigurationError
        If one does not exist, or has no known format: a test set that is not looked for would
        pass for one that is not in the rows.
    """
    paths: dict[Path, None] = {}
    for pattern in patterns:
        place = Path(pattern).expanduser()
        found, folders = ([place], []) if place.is_file() else matching(str(place))
        if not found:
            only = "means folders only" if folders else "does not exist"
            what = "is a folder" if place.is_dir() else only
            raise ConfigurationError(
                f"screen.benchmarks={pattern} {what}; give files or globs, such as "
                f"screen.benchmarks=[benchmarks/*.jsonl]"
            )
        readable, left = _sorted_out(found, pattern, root_of(str(place)))
        if left or folders:
            log.warning(
                "screen: of screen.benchmarks=%s rows are not held against %s: readmes and such, "
                "or folders, whose files are meant by their own names or by **",
                pattern,
                some_of([*left, *folders], root_of(str(place))),
            )
        paths.update(dict.fromkeys(readable))
    short = [path.name for path in paths]
    return tuple(
        Benchmark(path.name if short.count(path.name) == 1 else path.as_posix(), path)
        for path in paths
    )


def _sorted_out(found: Sequence[Path], pattern: str, root: Path) -> tuple[list[Path], list[Path]]:
    """Tell the files of known formats from a readme and such; refuse all others."""
    lost = [path for path in found if not path.exists()]
    require(
        not lost,
        f"screen.benchmarks={pattern} means {some_of(lost, root)}, a link that leads nowhere; "
        "fetch the file or remove the link",
    )
    readable = [path for path in found if suffix_of(path)]
    if not readable:
        raise ConfigurationError(
            f"screen.benchmarks={pattern} has no known format; names must end in {known_suffixes()}"
        )
    left = [path for path in found if not suffix_of(path)]
    unknown = [path for path in left if not is_beside_data(path)]
    require(
        not unknown,
        f"screen.benchmarks={pattern} means {some_of(unknown, root)}, too, whose format is not "
        "known, so that rows would not be held against it; convert it, or name the other files. "
        f"Names must end in {known_suffixes()}",
    )
    return readable, left


def read_benchmarks(
    files: Sequence[Benchmark], ngram: int
) -> tuple[pa.Table, dict[str, dict[str, int]]]:
    """Read the texts of all items that are long enough to be matched.

    Returns
    -------
    table : pyarrow.Table
        Of schema `WORDS`.
    facts : dict
        By name of the file, the counts of `BenchmarkFacts`.

    Raises
    ------
    DataError
        If a file holds no readable item.
    """
    texts: list[Text] = []
    facts = {}
    for number, file in enumerate(files):
        counts = BenchmarkFacts()
        texts += _texts_of(file, number, ngram, counts)
        if not counts.items:
            raise DataError(
                f"screen.benchmarks: {file.path} holds no item that can be read "
                f"({counts.unreadable} lines cannot); mend the file or leave it out"
            )
        if counts.unreadable:
            share = counts.unreadable_bytes / max(1, file.path.stat().st_size)
            log.warning(
                "screen: %d lines of the benchmark %s cannot be read (%.1f%% of its bytes); "
                "what they hold is not looked for",
                counts.unreadable,
                file.path,
                100 * min(share, 1.0),
            )
        facts[file.name] = asdict(counts)
    columns = {
        "benchmark": [text.benchmark for text in texts],
        "line": [text.line for text in texts],
        "words": [text.words for text in texts],
    }
    return pa.table(columns, schema=WORDS), facts


def load_index(file: Any, ngram: int) -> LeakIndex:
    """Make the index of a table that `read_benchmarks` gave."""
    rows = pq.read_table(file).to_pylist()
    return LeakIndex([Text(row["benchmark"], row["line"], row["words"]) for row in rows], ngram)


def _texts_of(file: Benchmark, number: int, ngram: int, counts: BenchmarkFacts) -> Iterator[Text]:
    for record in read_file(file.path):
        if record.value is None:
            counts.unreadable += 1
            counts.unreadable_bytes += len(record.raw or b"")
            continue
        counts.items += 1
        fields = [bare_words(" ".join(_strings(value))) for value in record.value.values()]
        long_enough = [words for words in fields if needed(len(words), ngram)]
        counts.too_short += not long_enough
        yield from (Text(number, record.line, words) for words in long_enough)


def _strings(value: object) -> Iterator[str]:
    """Give all strings of a field, such as the choices of a question."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
