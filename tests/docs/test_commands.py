"""Every command of README and docs runs as it is written, or stands in a table with the reason."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.blocks import (
    Step,
    blocks_in,
    commands_of,
    inline_commands,
    name_of,
    pages,
    steps_of,
)
from tests.docs.house import copy_checkout, run
from tests.docs.table import NOT_RUN, is_meant, needed_by, reason

STEPS = [step for page in pages() for step in steps_of(page)]
# In the order of the pages, each command once: where it comes again it would find all done.
RUN = {s.text: s for s in reversed(STEPS) if s.kind != "command" or not reason(s.text)}
TOLD = sorted(RUN.values(), key=STEPS.index)

PHONY = re.compile(r"^\.PHONY: (.*)$", re.M)
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
TARGETS = set(PHONY.findall(MAKEFILE)[0].split())


def label(step: Step) -> str:
    return f"{Path(step.page).name}: {step.path or step.text.splitlines()[0]}"[:90]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[Path]:
    """A copy in which the sample, `my` and `mine` have been curated, whichever page is read."""
    house = copy_checkout(tmp_path_factory.mktemp("docs"), model_folder)
    for command in ("make curate", "make curate DATASET=my.jsonl WORLD_SIZE=2 BUDGET=50%"):
        done = run(house, command)
        assert done.returncode == 0, done.stderr[-4000:]
    done = run(house, "make curate DATASET=my.jsonl NAME=mine")
    assert done.returncode == 0, done.stderr[-4000:]
    yield house


@pytest.mark.docs
@pytest.mark.parametrize("step", TOLD, ids=label)
def test_a_page_tells_what_works(house: Path, step: Step, tmp_path: Path) -> None:
    if step.kind == "file":
        ast.parse(step.text)
        (house / step.path).parent.mkdir(exist_ok=True)
        (house / step.path).write_text(step.text, encoding="utf-8")
        return
    command = step.text
    if step.kind == "diff":
        (tmp_path / "page.diff").write_text(step.text)
        command = f"git apply --verbose {tmp_path / 'page.diff'}"
    library = needed_by(command)
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; `make test-all` installs it")
    done = run(house, command)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("known", NOT_RUN)
def test_what_is_not_run_is_in_some_page(known: str) -> None:
    assert any(step.kind == "command" and is_meant(known, step.text) for step in STEPS)


def test_commands_are_found() -> None:
    """The two of the README are there, and no page of commands is read as empty."""
    by_page = {page: [s.text for s in STEPS if s.page == page] for page in map(name_of, pages())}
    assert {"make curate", "make test"} <= set(by_page["README.md"])
    for page in ("first-hour", "data", "model", "budget", "selectors", "formats", "report"):
        assert len(by_page[f"docs/{page}.md"]) >= 2, page


@pytest.mark.parametrize(
    ("page", "text"),
    [(name_of(page), text) for page in pages() for text in dict.fromkeys(inline_commands(page))],
)
def test_a_command_in_a_sentence_names_what_exists(page: str, text: str) -> None:
    words = text.split()
    if words[0] == "make":
        named = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        assert set(named) <= TARGETS, f"{page}: {text}"
    elif words[0] == "evenshard":
        from evenshard.__main__ import COMMANDS

        assert len(words) == 1 or words[1] in COMMANDS, f"{page}: {text}"
    else:
        assert importlib.util.find_spec(words[2]) is not None, f"{page}: {text}"


def test_the_parser_sees_commands_in_every_kind_of_block() -> None:
    text = (
        "a\n\n```sh\n$ make a   # why\nx 'a # b' \\\n  c\n```\n\n```\nmake b\nnot one\n```\n\n"
        "```python\nmake c\n```\n\n```text\nmake d\n```\n\n    evenshard e\n\nend `make f` `x`\n"
    )
    assert [commands_of(block) for block in blocks_in("page", text)] == [
        ["make a", "x 'a # b'    c"],
        ["make b"],
        [],
        [],
        ["evenshard e"],
    ]
