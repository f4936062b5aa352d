"""The reasons for rejects: those that the page tells of are those that the code writes."""

import ast
import re
from collections.abc import Iterator

from tests.conftest import ROOT

# Where a reason stands in the arguments of what carries it.
PLACES = {"Problem": 0, "RowRejected": 0, "Rejected": 0, "_reject": 2, "Record": 4}
HOLDERS = ("reason", "reasons", "refused", "LEAK")
WORD = re.compile("[a-z]+(_[a-z0-9]+)+")  # other reasons, as that for a schedule, are sentences


def words(node: ast.expr | None) -> Iterator[str]:
    """Give the texts that an expression may be; of a tuple the first, since the detail follows."""
    if isinstance(node, ast.Constant):
        yield from [node.value] if WORD.fullmatch(str(node.value)) else []
    inside: list[ast.expr] = []
    if isinstance(node, ast.BoolOp | ast.Dict):
        inside = node.values
    elif isinstance(node, ast.IfExp):
        inside = [node.body, node.orelse]
    elif isinstance(node, ast.Tuple):
        inside = node.elts[:1]
    for part in inside:
        yield from words(part)


def name_of(node: ast.expr) -> str:
    """Give the last name of `a`, `a.b` or `a.b[0]`."""
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def written(tree: ast.AST) -> Iterator[str]:
    """Give the reasons that a file writes into rejects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) in PLACES:
            place = PLACES[name_of(node.func)]
            yield from words(node.args[place] if len(node.args) > place else None)
        elif isinstance(node, ast.Assign) and any(name_of(t) in HOLDERS for t in node.targets):
            yield from words(node.value)


def test_the_page_tells_of_every_reason_and_of_no_other() -> None:
    files = (ROOT / "stages").rglob("*.py")
    code = {word for file in files for word in written(ast.parse(file.read_text("utf-8")))}
    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    table = page.partition("| reason | what to do |\n")[2].partition("\n\n")[0]
    told = {word for line in table.splitlines()[1:] for word in words_of(line.split("|")[1])}
    assert "benchmark_leak" in told and len(told) > 20
    assert told == code


def words_of(cell: str) -> list[str]:
    """Give what stands in code marks in a cell of a table."""
    return re.findall("`([a-z0-9_]+)`", cell)
