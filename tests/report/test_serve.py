"""The pages of `serve`, asked over a socket of this machine."""

import asyncio
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from pipeline.report import open_folder
from pipeline.serve import HOST, make_app, serve_run
from stages.contract.errors import ConfigurationError
from tests.report.hostile import FILE, Evil

Answers = dict[str, tuple[int, str, dict[str, str]]]


@pytest.fixture(scope="module")
def answers(evil: Evil, page: Path) -> Answers:
    """Ask a few addresses once."""
    paths = (
        "/",
        "/?fate=kept&cluster=1&text=question",
        "/?text=%3Cscript%3E",
        "/?source=%22%3E%3Cscript%3E",
        "/?cluster=x",
        "/?after=-1",
        f"/row/{evil.duplicate}",
        "/row/999999",
        "/row/1e3",
        "/report",
        "/../manifest.json",
        "/manifest.json",
    )
    return asyncio.run(ask(evil, paths))


async def ask(evil: Evil, paths: Sequence[str], headers: dict[str, str] | None = None) -> Answers:
    app = make_app(open_folder(evil.out))
    found = {}
    async with TestClient(TestServer(app, host=HOST)) as client:
        for path in paths:
            answer = await client.get(path, headers=headers)
            found[path] = (answer.status, await answer.text(), dict(answer.headers))
    return found


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


def test_the_table_pages_and_links_to_rows(answers: Answers) -> None:
    status, text, _ = answers["/"]
    assert status == 200
    assert text.count('<a href="/row/') == 50
    assert 'href="/?after=49" rel="next">Next page' in text
    assert "63 of 63 rows fit" in text
    assert "could not be read: 1, in" in text


def test_choices_stay_in_the_links_and_in_the_form(answers: Answers) -> None:
    _, text, _ = answers["/?fate=kept&cluster=1&text=question"]
    assert text.count('<a href="/row/') == 15
    assert "<option selected>kept</option>" in text and 'value="question"' in text


def test_text_of_the_set_and_of_the_address_is_text(answers: Answers) -> None:
    for path, (status, text, headers) in answers.items():
        if status != 200 or path == "/report":
            continue
        tags = Tags(text)
        assert not {"script", "img", "svg", "iframe"} & set(tags.tags), path
        assert not [name for name in tags.attributes if name.startswith("on")], path
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_row_shows_its_story_and_its_whole_text(answers: Answers, evil: Evil) -> None:
    status, text, _ = answers[f"/row/{evil.duplicate}"]
    assert status == 200
    assert f"row {evil.first} stands for it" in text
    assert FILE.replace("<", "&lt;").replace(">", "&gt;") in text
    assert "question 0 &lt;script&gt;" in text


def test_the_report_is_served_and_nothing_else_of_the_folder(answers: Answers, page: Path) -> None:
    assert answers["/report"][:2] == (200, page.read_text(encoding="utf-8"))
    assert "Content-Security-Policy" not in answers["/report"][2]  # it brings its own
    assert [answers[p][0] for p in ("/../manifest.json", "/manifest.json")] == [404, 404]


def test_what_cannot_be_answered_is_refused(answers: Answers) -> None:
    assert answers["/?cluster=x"][0] == 400
    assert answers["/row/999999"][0] == answers["/row/1e3"][0] == 404


def test_only_names_of_this_machine_are_answered(evil: Evil) -> None:
    for host, status in (("evil.example", 403), ("localhost:1", 200), ("127.0.0.1", 200)):
        found = asyncio.run(ask(evil, ["/"], headers={"Host": host}))
        assert found["/"][0] == status


@pytest.mark.parametrize("port", ["x", "-1", "65536"])
def test_a_port_that_is_none_is_an_error(port: str) -> None:
    with pytest.raises(ConfigurationError, match="port="):
        serve_run([f"port={port}"])


def test_a_port_that_is_taken_is_an_error_with_a_remedy(evil: Evil, page: Path) -> None:
    async def take() -> None:
        async with TestServer(make_app(open_folder(evil.out)), host=HOST) as server:
            taken = [f"out={evil.out}", "name=evil", f"port={server.port}"]
            with pytest.raises(ConfigurationError, match="cannot be used"):
                await asyncio.to_thread(serve_run, taken)

    asyncio.run(take())
