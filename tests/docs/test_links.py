"""Links between the pages resolve: files, and headings inside them."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.blocks import FENCE

PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "data" / "sample" / "README.md"]
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.M)


def anchors(page: Path) -> set[str]:
    """Name the headings of a page as GitHub does."""
    found = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        found.add(text.replace(" ", "-"))
    return found


def links() -> list[tuple[Path, str]]:
    found = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        found += [(page, target) for target in LINK.findall(text)]
    return found


@pytest.mark.parametrize(
    ("page", "target"), links(), ids=lambda v: v.name if isinstance(v, Path) else v
)
def test_a_link_leads_somewhere(page: Path, target: str) -> None:
    if target.startswith(("https://", "http://")):
        return  # tests have no network
    file, _, anchor = target.partition("#")
    there = (page.parent / file).resolve() if file else page
    assert there.exists(), f"{page.name}: {target}"
    assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_page_can_be_reached_from_the_readme(page: Path) -> None:
    assert f"docs/{page.name}" in (ROOT / "README.md").read_text(encoding="utf-8")
