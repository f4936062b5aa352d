"""The report's door to the disk: from the artifacts of a run to `report.html`."""

import importlib.util
import json
import logging
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.contract.artifact import Artifact
from stages.contract.errors import require
from stages.report.gather import budget_chart, compare_rows, gather
from stages.report.page import library, light_colours, render

log = logging.getLogger(__name__)

REPORT = "report.html"


def require_library() -> None:
    """Check that a report can be written, before any work and without loading anything.

    Raises
    ------
    ConfigurationError
        If the package that brings the code of the pictures is not installed.
    """
    require(
        importlib.util.find_spec("vl_convert") is not None,
        "the report needs the package vl-convert-python, which is not installed; install it with "
        "`pip install -e '.[report]'`",
    )


def write_report(
    out: Path,
    artifacts: Mapping[str, Artifact],
    manifest: Mapping[str, Any],
    compare: Mapping[str, Any] | None = None,
    *,
    left_out: str = "",
) -> Path:
    """Write the page of a run into its published folder, whole or not at all.

    Parameters
    ----------
    out : Path
        The published folder.
    artifacts : mapping of str to Artifact
        All artifacts of the run by stage.
    manifest : mapping
        Of the published folder.
    compare : mapping, optional
        What `compare.json` holds, where a comparison was made.
    left_out : str
        Why a comparison is not shown, where there is one.

    Returns
    -------
    Path
        The file. The same artifacts give the same bytes.

    Raises
    ------
    ConfigurationError
        If the package that draws is not installed.
    """
    require_library()
    page = render(gather(artifacts, manifest, compare, left_out), code=library())
    path = out / REPORT
    temporary = out / f".{REPORT}.{uuid.uuid4().hex}"
    try:
        temporary.write_text(page, encoding="utf-8", newline="\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    log.info("report   %s, %.1f MB", path, path.stat().st_size / 1e6)
    return path


def write_plot(path: Path, compare: Mapping[str, Any]) -> None:
    """Draw the error of the best methods against the budget, as a picture that stands alone.

    Parameters
    ----------
    path : Path
        An SVG file.
    compare : mapping
        What `compare.json` holds.

    Raises
    ------
    ConfigurationError
        If the package that draws is not installed.
    """
    require_library()
    import vl_convert

    drawn = {**budget_chart(compare_rows(compare)), "width": 640, "height": 360}
    drawn["config"] = {**drawn["config"], "background": "white"}
    text = json.dumps(drawn)
    for name, colour in light_colours().items():
        text = text.replace(f"var({name})", colour)
    path.write_text(vl_convert.vegalite_to_svg(text), encoding="utf-8")
