"""The page: one file that holds its figures, its pictures and the code that draws them.

All text of a data set is hostile. It is escaped by the template, and where it travels to a
picture, as JSON in which no `<` is left. The page also states, by the hashes of its own scripts,
that no other script may run, and that nothing may be fetched.
"""

import base64
import functools
import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stages.allocate.figures import beside, errors_of
from stages.contract.shown import flat
from stages.report.gather import Story

HERE = Path(__file__).parent

FIGURE_NAMES = {
    "gradient_error": "gradient error of the whole epoch",
    "cluster_error_mean": "gradient error per cluster, mean",
    "cluster_error_worst": "gradient error per cluster, worst",
    "step_error": "gradient error per step, mean",
    "radius_mean": "distance to the nearest kept row, mean",
    "radius_max": "distance to the nearest kept row, largest",
    "effective_sample_size": "effective sample size, a share of the rows",
    "shift_of_sources": "shift of the mix of sources, 0 to 1",
    "shift_of_lengths": "shift of the mix of lengths, 0 to 1",
    "tokens": "tokens",
}


@functools.cache
def library() -> str:
    """Give the code of Vega, Vega-Lite and Vega-Embed as one script, from the installed package.

    Raises
    ------
    ValueError
        If the code holds what would end the element that it stands in.
    """
    import vl_convert

    code = str(vl_convert.javascript_bundle())  # type: ignore[call-arg]  # the stub is wrong
    if "</script" in code.lower() or "<!--" in code:
        raise ValueError("the code of vega holds a mark that ends a script element")
    return code


def light_colours() -> dict[str, str]:
    """Read the colours of the light page by their names in the style sheet."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    light = style[: style.index("@media")]
    return dict(re.findall(r"(--[a-z0-9-]+): (#[0-9a-f]{6});", light))


def templates() -> Environment:
    """Give the templates of this folder, which escape all text that is put into them."""
    return Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(story: Story, *, code: str) -> str:
    """Write the page.

    Parameters
    ----------
    story : Story
        What it says.
    code : str
        The library that draws, see `library`.
    """
    environment = templates()
    environment.filters.update(
        {
            "percent": percent,
            "number": number,
            "short": short,
            "figure": figure,
            "settings": setting_lines,
        }
    )
    draw = (HERE / "draw.js").read_text(encoding="utf-8").replace("\r", "")
    return environment.get_template("page.html.jinja").render(
        story=story,
        manifest=story.manifest,
        quality=story.facts["allocate"].get("quality"),
        sentence=sentence(story),
        figures=figures(story),
        figure_names=FIGURE_NAMES,
        command=command(story.manifest),
        style=(HERE / "style.css").read_text(encoding="utf-8"),
        library=code,
        draw=draw,
        scripts=" ".join(f"'sha256-{source_hash(script)}'" for script in (code, draw)),
    )


def source_hash(script: str) -> str:
    """Hash a script as a content security policy names it."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def sentence(story: Story) -> str:
    """Say in one sentence what came in, what was kept, and how good it is."""
    manifest, rows = story.manifest, story.facts["rows"]
    text = (
        f"Of {rows['read']:,} rows, {manifest['rows']:,} were kept "
        f"({manifest['tokens']:,} tokens), {manifest['rows_per_worker']:,} for each of "
        f"{manifest['world_size']} workers"
    )
    quality = story.facts["allocate"].get("quality")
    if quality is None:
        return f"{text}; how near they are to all rows was not measured."
    own, random, ratio = errors_of(quality)
    return (
        f"{text}; their weighted gradient misses that of all rows by {own:.1%}, "
        f"{beside(ratio)} random choices of the same size, which miss it "
        f"by {random:.1%}."
    )


def figures(story: Story) -> list[tuple[str, str, str]]:
    """Give the six figures: name, value, and what it means."""
    manifest = story.manifest
    quality = story.facts["allocate"].get("quality")
    rejects = manifest["rejects"]
    reasons = ", ".join(f"{n:,} {reason}" for reason, n in rejects["by_reason"].items())
    error, spread = "not measured", "the pass made no judge sketch"
    if quality is not None:
        own, random, ratio = errors_of(quality)
        error = f"{ratio:.2f} x random"
        spread = (
            f"{own:.3f} against {random:.3f} ± "
            f"{quality['random_std']['gradient_error']:.3f} of {quality['draws']} random draws; "
            f"below 1 is better"
        )
    return [
        ("Asked", manifest["asked"].removeprefix("allocate."), "the setting that decides the size"),
        (
            "Got",
            f"{manifest['rows']:,} rows",
            manifest["got"],
        ),
        ("Gradient error", error, spread),
        (
            "Effective sample size",
            f"{manifest['weights']['effective_sample_size']:.1%}",
            f"of the kept rows; weights from {manifest['weights']['min']:.3g} to "
            f"{manifest['weights']['max']:.3g}",
        ),
        (
            "Imbalance",
            f"{manifest['schedule']['imbalance']:.3f}",
            f"tokens of the busiest worker over the mean, {manifest['schedule']['kind']} schedule; "
            f"1 is even",
        ),
        ("Rejects", f"{rejects['rows']:,} rows", reasons or "every row could be used"),
    ]


def command(manifest: Mapping[str, Any]) -> str:
    """Write the command that repeats the run, ready for a shell."""
    return shlex.join(["python", "-m", "pipeline", "curate", *map(str, manifest["overrides"])])


def percent(value: float) -> str:
    """Write a share."""
    return f"{value:.1%}"


def number(value: float) -> str:
    """Write a count with its thousands apart."""
    return f"{value:,.0f}"


def short(value: float | None) -> str:
    """Write a figure with three digits after the point, or a dash where there is none."""
    return "-" if value is None else f"{value:,.3f}"


def figure(value: float) -> str:
    """Write a figure of the table of quality: shares with digits, counts without."""
    return number(value) if value >= 100 else short(value)


def setting_lines(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List settings by their full keys."""
    return [
        (name, "none" if value is None else str(value)) for name, value in flat(settings).items()
    ]
