"""A plot as SVG, written by hand: loss against tokens, one line a method. No library is needed."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 300, 20, 50
COLORS = (
    "#222222",
    "#1f77b4",
    "#d62728",
    "#2ca02c",
    "#ff7f0e",
    "#9467bd",
    "#8c564b",
    "#17becf",
    "#e377c2",
    "#7f7f7f",
    "#bcbd22",
)

Points = Sequence[tuple[float, float]]


def plot(lines: Mapping[str, Points], *, x_label: str, y_label: str) -> str:
    """Draw lines of points.

    Parameters
    ----------
    lines : mapping of str to sequence of (x, y)
        By their names; x above 0, drawn on a logarithmic axis.
    x_label, y_label : str
        Of the axes.

    Returns
    -------
    str
        An SVG document.
    """
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    low_x, high_x = math.log10(min(xs)) - 0.03, math.log10(max(xs)) + 0.03
    margin = 0.05 * (max(ys) - min(ys)) or 1.0
    low_y, high_y = min(ys) - margin, max(ys) + margin

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low_x) / (high_x - low_x)
        up = (y - low_y) / (high_y - low_y)
        return (
            LEFT + across * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_axes(place, (low_x, high_x), (low_y, high_y), x_label, y_label),
    ]
    for number, (name, points) in enumerate(lines.items()):
        parts += _line(name, [place(x, y) for x, y in points], number)
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Give about five round numbers between two bounds."""
    rough = (high - low) / 5
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.ceil(low / step)
    return [step * k for k in range(first, math.floor(high / step) + 1)]


def _axes(place, x_range, y_range, x_label, y_label):  # type: ignore[no-untyped-def]
    parts = []
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for y in ticks(*y_range):
        _, at = place(10 ** x_range[0], y)
        parts.append(
            f'<path d="M{LEFT} {at:.1f}H{right}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{y:.4g}</text>'
        )
    low, high = 10 ** x_range[0], 10 ** x_range[1]
    for power in range(math.floor(x_range[0]), math.ceil(x_range[1]) + 1):
        for factor in (1, 2, 5):
            x = factor * 10.0**power
            if low <= x <= high:
                at, _ = place(x, y_range[0])
                parts.append(
                    f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="#dddddd"/>'
                    f'<text x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{_count(x)}</text>'
                )
    middle = (TOP + bottom) / 2
    parts += [
        f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="black"/>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        f"{escape(x_label)}</text>",
        f'<text x="16" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 16 {middle})">{escape(y_label)}</text>',
    ]
    return parts


def _line(name: str, places: Points, number: int) -> list[str]:
    color = COLORS[number % len(COLORS)]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    row = TOP + 10 + 16 * number
    legend = WIDTH - RIGHT + 16
    return [
        f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="1.5"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places),
        f'<rect x="{legend}" y="{row - 8}" width="10" height="10" fill="{color}"/>'
        f'<text x="{legend + 16}" y="{row + 1}">{escape(name)}</text>',
    ]


def _count(number: float) -> str:
    """Write 20000 as 20k and 2000000 as 2M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"
