"""What the pages tell a reader to do: their fenced blocks, and the commands in them, in order."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.M | re.S
)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?:    [^\n]*\n)+", re.M)
INLINE = re.compile(r"`((?:make|evenshard|python -m [a-z.]+)(?: [^`\n]*)?)`")
# First words by which a line of a block without a language is known as a command.
PROGRAMS = {"make", "python", "pip", "evenshard", "torchrun", "git", "ray", "sbatch", "kubectl"}
FILE = re.compile(r"\A# (?P<path>[\w/.-]+\.py)\n")


@dataclass(frozen=True)
class Block:
    """A fenced (or indented) block of a page: its language, "" where none is said, and its text."""

    page: str
    language: str
    text: str


@dataclass(frozen=True)
class Step:
    """One thing to do: run a command, write a file, or apply a diff.

    Attributes
    ----------
    page : str
        Name of the page, relative to the checkout.
    kind : str
        command, file or diff.
    text : str
        The command without comments, or the text of the block.
    path : str
        Of a file that is to be written.
    """

    page: str
    kind: str
    text: str
    path: str = ""


def pages() -> list[Path]:
    """README and docs, in the order in which a newcomer reads them."""
    first = [ROOT / "README.md", ROOT / "docs" / "first-hour.md"]
    return [*first, *(p for p in sorted((ROOT / "docs").glob("*.md")) if p not in first)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    return blocks_in(name_of(page), page.read_text(encoding="utf-8"))


def blocks_in(name: str, text: str) -> list[Block]:
    """Take the blocks of a page: the fenced ones in order, then the indented ones."""
    found = [
        Block(name, match["language"], _without(match["indent"], match["text"]))
        for match in FENCE.finditer(text)
    ]
    rest = FENCE.sub("", text)
    found += [Block(name, "", _without("    ", m[0])) for m in INDENTED.finditer(rest)]
    return found


def _without(indent: str, text: str) -> str:
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


def commands_of(block: Block) -> list[str]:
    """Take the commands of a block: all lines of shell, and lines of others that begin as one."""
    if block.language not in ("", "sh", "bash", "console"):
        return []
    joined = block.text.replace("\\\n", " ")
    lines = [_without_comment(line) for line in joined.splitlines()]
    if block.language == "":
        lines = [line for line in lines if line and Path(line.split()[0]).name in PROGRAMS]
    return [line for line in lines if line]


def _without_comment(line: str) -> str:
    """Cut a comment that stands outside of quotes, and runs of blanks with it."""
    line = line.strip().removeprefix("$ ")
    if "#" not in line:
        return line
    kept = re.match(r"""(?:[^#'"]|'[^']*'|"[^"]*"|(?<=\S)#)*""", line)
    return kept[0].strip() if kept else line


def steps_of(page: Path) -> list[Step]:
    """List what a page tells to do."""
    steps = []
    for block in blocks_of(page):
        named = FILE.match(block.text) if block.language == "python" else None
        if named:
            text = block.text[named.end() :]
            steps.append(Step(block.page, "file", text, named["path"]))
        elif block.language == "diff":
            steps.append(Step(block.page, "diff", block.text))
        steps += [Step(block.page, "command", command) for command in commands_of(block)]
    return steps


def inline_commands(page: Path) -> list[str]:
    """Commands that stand in a sentence: they are not run, but what they name must exist."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return [" ".join(match[1].split()) for match in INLINE.finditer(text)]
