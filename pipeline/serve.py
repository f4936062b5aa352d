"""`serve`: the report and the table of all rows in a browser, on this machine only.

aiohttp serves, which ray[default] brings, and pyarrow reads, so nothing more is installed. Only
GET is answered, only on 127.0.0.1, and only under the names of this machine, so that no page of
the web can read the rows by a name of its own that it lets point here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from aiohttp import web
from jinja2 import Environment

from pipeline.report import Finished, open_run, report_of
from stages.contract.errors import ConfigurationError
from stages.report.fates import FATES
from stages.report.lookup import explain
from stages.report.page import HERE, templates
from stages.report.reading import iter_groups
from stages.report.table import Index, Query, page_of, read_index
from stages.report.write import REPORT

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
PORT = 8765
NAMES = {"127.0.0.1", "localhost"}
SHOWN_SOURCES = 500
SHOWN_CHARS = 200_000
# Nothing is fetched and no script runs on the pages of the table.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Explorer:
    """A finished run that is looked at."""

    run: Finished
    index: Index
    templates: Environment

    async def table(self, request: web.Request) -> web.Response:
        """Show a page of the table."""
        query = read_query(request.query)
        page = await asyncio.to_thread(page_of, self.index, self.run.artifacts["rows"], query)
        asked = {name: value for name, value in request.query.items() if value and name != "after"}
        values = {
            "page": page,
            "query": query,
            "fates": FATES,
            "num_rows": self.index.fate.size,
            "num_clusters": self.index.sizes.size,
            "sources": self.index.sources[:SHOWN_SOURCES],
            "unread": self.run.artifacts["rows"].facts["rejected"],
            "first": "/?" + urlencode(asked),
            "next": None
            if page.after is None
            else "/?" + urlencode({**asked, "after": page.after}),
        }
        return self._html("table.html.jinja", values)

    async def row(self, request: web.Request) -> web.Response:
        """Show the life and the text of one row."""
        row_id = int(request.match_info["row_id"])
        if row_id >= self.index.fate.size:
            raise web.HTTPNotFound(text=f"there is no row {row_id}")
        story, row = await asyncio.to_thread(self._read_row, row_id)
        turns = [(m["role"], m["content"][:SHOWN_CHARS]) for m in row["messages"]]
        meta = (row["meta"] or "")[:SHOWN_CHARS]
        values = {"row_id": row_id, "story": story, "turns": turns, "meta": meta}
        return self._html("row.html.jinja", values)

    def _read_row(self, row_id: int) -> tuple[str, dict[str, Any]]:
        rows = self.run.artifacts["rows"]
        [table] = iter_groups(rows, np.array([row_id]), ["messages", "meta"])
        story = explain(self.run.artifacts, self.run.manifest, str(row_id))
        return story, table.to_pylist()[0]

    async def report(self, request: web.Request) -> web.StreamResponse:
        """Show the report, which brings a policy of its own."""
        return web.FileResponse(self.run.out / REPORT)

    def _html(self, template: str, values: Mapping[str, Any]) -> web.Response:
        text = self.templates.get_template(template).render(
            name=self.run.manifest["name"],
            style=(HERE / "style.css").read_text(encoding="utf-8"),
            **values,
        )
        return web.Response(
            text=text, content_type="text/html", headers={"Content-Security-Policy": POLICY}
        )


def read_query(asked: Any) -> Query:
    """Read a query from the address.

    Raises
    ------
    HTTPBadRequest
        If a number is none.
    """
    try:
        return Query(
            fate=asked.get("fate", ""),
            source=asked.get("source", ""),
            cluster=int(asked["cluster"]) if asked.get("cluster") else None,
            text=asked.get("text", ""),
            after=int(asked.get("after") or -1),
        )
    except ValueError:
        raise web.HTTPBadRequest(text="cluster and after must be whole numbers") from None


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer only who asks this machine by its own name, and let nobody guess types."""
    if request.host.rsplit(":", 1)[0] not in NAMES:
        raise web.HTTPForbidden(text="this page is only served on 127.0.0.1 and localhost")
    response = await handler(request)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-store"
    return response


def make_app(run: Finished) -> web.Application:
    """Build the pages of a run; the report is made where the folder has none."""
    if not (run.out / REPORT).exists():
        report_of(run.out, run.artifacts, run.manifest)
    explorer = Explorer(run, read_index(run.artifacts), templates())
    app = web.Application(middlewares=[guard])
    app.add_routes(
        [
            web.get("/", explorer.table),
            web.get(r"/row/{row_id:\d{1,18}}", explorer.row),
            web.get("/report", explorer.report),
        ]
    )
    return app


def serve_run(arguments: Sequence[str]) -> None:
    """Serve the run that `name=` or `out=` names, at `port=`, until it is interrupted.

    Raises
    ------
    ConfigurationError
        If there is no such run, or the port is taken or no port.
    """
    ports = [word.removeprefix("port=") for word in arguments if word.startswith("port=")]
    given = ports[-1] if ports else str(PORT)
    if not given.isdecimal() or not 0 <= int(given) < 65536:
        raise ConfigurationError(f"port={given} must be a number in [0, 65536); 0 takes a free one")
    app = make_app(open_run([word for word in arguments if not word.startswith("port=")]))
    try:
        asyncio.run(_serve(app, int(given)))
    except OSError as error:
        raise ConfigurationError(
            f"port={given} cannot be used ({error.strerror}); give another port=..., or 0"
        ) from error


async def _serve(app: web.Application, port: int) -> None:
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        await site.start()
        log.info("serving  http://%s:%d/ until Ctrl-C", *runner.addresses[0][:2])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
