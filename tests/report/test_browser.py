"""The page in headless Chromium: it draws, fetches nothing, runs nothing of others; all can use it.

Needs Debian's chromium and the extra [browser]; with SCREENSHOTS=<folder> the pictures are kept.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt install chromium)"),
]
SECTIONS = (
    "summary",
    "funnel",
    "map",
    "clusters",
    "weights",
    "workers",
    "quality",
    "rejects",
    "settings",
)
WIDTHS = (1280, 390)
OPEN_ALL = "document.querySelectorAll('details').forEach(place => place.open = true)"
SERIOUS = {"serious", "critical"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        # Everything runs as root in a container, where Chromium's own sandbox cannot start.
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page that is open, with all that it said and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.page = browser.new_context(**options).new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]", timeout=60_000)

    def close(self) -> None:
        self.page.context.close()


@pytest.fixture
def visit(browser: Any, page: Path) -> Iterator[Visit]:
    visit = Visit(browser, page, viewport={"width": 1280, "height": 900})
    yield visit
    visit.close()


def test_it_says_nothing_in_the_console_and_fetches_nothing(visit: Visit, page: Path) -> None:
    visit.page.wait_for_timeout(300)
    assert visit.said == []
    assert [url for url in visit.asked if not url.startswith("data:")] == [page.as_uri()]


def test_no_text_of_the_set_runs(visit: Visit) -> None:
    visit.page.evaluate(OPEN_ALL)
    hover_over_points(visit.page, 12)
    assert visit.page.evaluate("window.__owned === undefined")
    assert visit.page.locator("img, iframe, svg[onload]").count() == 0
    assert visit.said == []


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_has_its_content(visit: Visit, section: str) -> None:
    place = visit.page.locator(f"section#{section}")
    assert len(place.inner_text()) > 60
    charts = {"funnel": 1, "map": 1, "weights": 1, "workers": 1, "quality": 2}.get(section, 0)
    assert place.locator("svg").count() == charts
    for chart in place.locator("svg").all():
        assert chart.locator("path, rect, text").count() > 5
        assert chart.bounding_box()["height"] > 60


def hover_over_points(page: Any, count: int) -> list[str]:
    texts = []
    marks = page.locator("#map .mark-symbol path")
    marks.first.scroll_into_view_if_needed()
    for index in range(min(count, marks.count())):
        box = marks.nth(index).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(30)
        texts.append(page.locator("#vg-tooltip-element").inner_text())
    return texts


def test_hover_shows_the_text_of_the_row(visit: Visit) -> None:
    texts = hover_over_points(visit.page, 24)
    assert visit.page.locator("#vg-tooltip-element.visible").count() == 1
    assert all("question " in text and "cluster" in text for text in texts)
    assert any("<script>window.__owned=1</script>" in text for text in texts)
    assert visit.page.locator("#vg-tooltip-element :is(a, b, strong, script, img)").count() == 0


def test_colours_can_follow_the_sources(visit: Visit) -> None:
    colours = "[...document.querySelectorAll('#map .mark-symbol path')].map(" + (
        "path => path.attributes.stroke.value)"
    )
    before = visit.page.evaluate(colours)
    visit.page.get_by_label("source", exact=True).check()
    visit.page.wait_for_timeout(200)
    after = visit.page.evaluate(colours)
    assert len(before) == len(after) and before != after
    assert visit.page.locator("[data-key=source]").is_visible()
    assert visit.page.locator("[data-key=cluster]").is_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing_serious_and_the_page_fits(
    browser: Any, page: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe here yet")
    visit = Visit(
        browser,
        page,
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        bypass_csp=True,  # only so that axe itself may run
    )
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"report-{scheme}-{width}.png"
    visit.page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 10_000
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
    visit.page.evaluate(OPEN_ALL)
    found = axe.Axe().run(visit.page).response["violations"]
    serious = [(v["id"], v["nodes"][0]["html"]) for v in found if v["impact"] in SERIOUS]
    assert serious == []
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_in_pictures_has_the_colour_of_the_scheme(
    browser: Any, page: Path, scheme: str
) -> None:
    visit = Visit(browser, page, color_scheme=scheme)
    colour = visit.page.evaluate(
        "getComputedStyle(document.querySelector('#funnel svg text')).fill"
    )
    assert colour == {"light": "rgb(27, 31, 36)", "dark": "rgb(232, 234, 237)"}[scheme]
    visit.close()
