"""The pictures of the report, as Vega-Lite specifications: plain values, no text of ours or others.

Colours are names that the page's style sheet defines once for light and once for dark.
"""

from collections.abc import Sequence
from typing import Any

Spec = dict[str, Any]
Rows = Sequence[dict[str, Any]]

# Six colours and a grey: told apart under the common kinds of colour blindness.
NUM_COLOURS = 6
PALETTE = [*(f"var(--c{slot})" for slot in range(NUM_COLOURS)), "var(--c-other)"]
INK, SOFT, LINE, ACCENT = "var(--ink)", "var(--soft)", "var(--line)", "var(--c0)"
CROSS = "M-0.8,-0.8L0.8,0.8M0.8,-0.8L-0.8,0.8"

CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": LINE,
        "domainColor": SOFT,
        "tickColor": SOFT,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
    },
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "orient": "top",
    },
}


def spec(description: str, height: int, rows: Rows, body: Spec) -> Spec:
    """Put a picture's own part into what all have in common."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        "data": {"values": list(rows)},
        **body,
    }


def map_chart(points: Rows, centers: Rows, description: str) -> Spec:
    """Draw rows in their plane: dots are kept, crosses are not; the page sets what colour means.

    `points` have x, y, by_cluster and by_source (slots of the palette), state, and what is shown
    on hover; `centers` have x, y and name.
    """
    shown = ("row", "cluster", "source", "state", "distance", "tokens", "weight")
    slot = {
        "field": "slot",
        "type": "ordinal",
        "scale": {"domain": list(range(NUM_COLOURS + 1)), "range": PALETTE},
        "legend": None,
    }
    axis = {"title": None, "labels": False, "ticks": False, "grid": False, "domain": False}
    x = {"field": "x", "type": "quantitative", "axis": axis, "scale": {"zero": False}}
    y = {"field": "y", "type": "quantitative", "axis": axis, "scale": {"zero": False}}
    dots = {
        "transform": [
            {
                "calculate": "colour == 'cluster' ? datum.by_cluster : datum.by_source",
                "as": "slot",
            }
        ],
        "mark": {"type": "point", "size": 42, "strokeWidth": 1.3, "aria": False},
        "encoding": {
            "x": x,
            "y": y,
            "stroke": slot,
            "fill": {
                **slot,
                "condition": {"test": "datum.state != 'kept'", "value": "none"},
            },
            "shape": {
                "field": "state",
                "type": "nominal",
                "scale": {"domain": ["kept", "not selected"], "range": ["circle", CROSS]},
                "legend": None,
            },
            "opacity": {
                "condition": {"test": "datum.state == 'kept'", "value": 0.9},
                "value": 0.55,
            },
            "tooltip": [{"field": name} for name in (*shown, "prompt", "answer")],
        },
    }
    text = {"type": "text", "fontSize": 13, "fontWeight": "bold", "aria": False}
    halo = {**text, "color": "var(--paper)", "stroke": "var(--paper)", "strokeWidth": 5}
    place = {"x": x, "y": y, "text": {"field": "name"}}
    labels = [
        {"data": {"values": list(centers)}, "mark": mark, "encoding": place}
        for mark in (halo, {**text, "color": INK})
    ]
    body = {"params": [{"name": "colour", "value": "cluster"}], "layer": [dots, *labels]}
    return spec(description, 420, points, body)


def funnel_chart(rows: Rows, description: str) -> Spec:
    """Draw the rows left after each step as bars, from top to bottom."""
    most = max(row["rows"] for row in rows)
    bars = {
        "mark": {"type": "bar", "color": ACCENT, "cornerRadiusEnd": 2},
        "encoding": {"tooltip": [{"field": f} for f in ("step", "rows", "lost", "why")]},
    }
    names = {
        "mark": {"type": "text", "align": "left", "dx": 4, "color": INK, "aria": False},
        "encoding": {"text": {"field": "rows", "format": ","}},
    }
    encoding = {
        "y": {"field": "step", "type": "nominal", "sort": None, "axis": {"title": None}},
        "x": {
            "field": "rows",
            "type": "quantitative",
            "axis": {"title": "rows", "tickCount": 4, "format": "~s"},
            "scale": {"domainMax": most * 1.15, "nice": False},
        },
    }
    return spec(description, 26 * len(rows), rows, {"encoding": encoding, "layer": [bars, names]})


def weights_chart(bins: Rows, description: str) -> Spec:
    """Draw the histogram of the weights, with a line at 1, the mean."""
    title = {"title": "weight", "tickCount": 6, "format": ".2~f"}
    x: Spec = {"field": "start", "type": "quantitative", "axis": title}
    mark: Spec = {"type": "bar", "color": ACCENT}
    if len(bins) == 1:
        across: Spec = {"x": x}
        mark |= {"size": 24}
    else:
        across = {"x": {**x, "bin": {"binned": True}}, "x2": {"field": "stop"}}
        mark |= {"stroke": "var(--paper)", "strokeWidth": 0.5}
    bars = {
        "mark": mark,
        "encoding": {
            **across,
            "y": {"field": "rows", "type": "quantitative", "axis": {"title": "rows"}},
            "tooltip": [
                {"field": "start", "type": "quantitative", "format": ".3f"},
                {"field": "stop", "type": "quantitative", "format": ".3f"},
                {"field": "rows"},
            ],
        },
    }
    mean = {
        "data": {"values": [{"start": 1.0}]},
        "mark": {"type": "rule", "color": INK, "strokeDash": [4, 3]},
        "encoding": {"x": {"field": "start", "type": "quantitative"}},
    }
    return spec(description, 190, bins, {"layer": [bars, mean]})


def strip_chart(cells: Rows, num_workers: int, description: str) -> Spec:
    """Draw the tokens of every worker in every step beside the mean of the step, as a strip.

    Blue is below the mean and orange above, however far the cells of the strip reach.
    """
    body = {
        "mark": {"type": "rect", "aria": False},
        "encoding": {
            "x": {
                "field": "step",
                "type": "quantitative",
                "axis": {"title": "step", "grid": False, "tickMinStep": 1, "format": "d"},
                "scale": {"nice": False, "zero": True},
            },
            "x2": {"field": "stop"},
            "y": {
                "field": "worker",
                "type": "ordinal",
                "axis": {"title": "worker", "labelOverlap": True},
            },
            "color": {
                "field": "ratio",
                "type": "quantitative",
                "scale": {"scheme": "blueorange", "domainMid": 1},
                "legend": {
                    "title": "tokens, of the mean worker's",
                    "format": ".2~f",
                    "gradientLength": 160,
                    "tickCount": 4,
                },
            },
            "tooltip": [
                {"field": "step"},
                {"field": "worker"},
                {"field": "tokens", "type": "quantitative", "format": ".1f"},
                {"field": "ratio", "type": "quantitative", "format": ".2f"},
            ],
        },
    }
    height = num_workers * max(4, min(26, 640 // num_workers))
    return spec(description, height, cells, body)


def errors_chart(rows: Rows, random_mean: float, description: str) -> Spec:
    """Draw the gradient error of each cluster, with the mean error of random draws as a line."""
    dots = {
        "mark": {"type": "point", "filled": True, "size": 70, "color": ACCENT},
        "encoding": {
            "x": {
                "field": "cluster",
                "type": "ordinal",
                "axis": {"title": "cluster", "labelAngle": 0, "labelOverlap": True},
            },
            "y": {
                "field": "error",
                "type": "quantitative",
                "axis": {"title": "gradient error", "tickCount": 5},
                "scale": {"zero": True},
            },
            "tooltip": [
                {"field": "cluster"},
                {"field": "error", "type": "quantitative", "format": ".3f"},
            ],
        },
    }
    line = {
        "data": {"values": [{"error": random_mean}]},
        "mark": {"type": "rule", "color": "var(--c1)", "strokeDash": [6, 4], "strokeWidth": 2},
        "encoding": {"y": {"field": "error", "type": "quantitative"}},
    }
    return spec(description, 200, rows, {"layer": [dots, line]})


def compare_chart(rows: Rows, methods: Sequence[str], description: str) -> Spec:
    """Draw error against budget: a line per method, told apart by colour and by mark."""
    order = list(methods)
    body = {
        "mark": {"type": "line", "point": {"size": 60, "filled": True}, "strokeWidth": 2},
        "encoding": {
            "x": {
                "field": "budget",
                "type": "quantitative",
                "axis": {"title": "share of the rows kept", "format": "%"},
                "scale": {"zero": False},
            },
            "y": {
                "field": "error",
                "type": "quantitative",
                "axis": {"title": "gradient error"},
                "scale": {"zero": True},
            },
            "color": {
                "field": "method",
                "type": "nominal",
                "scale": {"domain": order, "range": PALETTE[: len(order)]},
                "legend": {"title": None, "columns": 3, "symbolType": "stroke"},
            },
            "shape": {"field": "method", "type": "nominal", "scale": {"domain": order}},
            "tooltip": [
                {"field": "method"},
                {"field": "budget", "type": "quantitative", "format": ".0%"},
                {"field": "error", "type": "quantitative", "format": ".3f"},
            ],
        },
    }
    return spec(description, 260, rows, body)
