"""A line chart as SVG text: no drawing library is needed to make the report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 48
COLORS = (
    "#1f5fa8", "#c2571a", "#2d7d46", "#8a3d8f", "#555555", "#b8860b", "#0f8b8d", "#b03060",
)  # fmt: skip
# Points drawn of a line; more are averaged, which also smooths the noise of single batches.
MAX_POINTS = 240
_TICKS = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the chart; ``xs`` rise."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


def thinned(line: Line, num_points: int = MAX_POINTS) -> Line:
    """The same line as means of neighbouring points, at most ``num_points`` of them."""
    size = math.ceil(len(line.xs) / num_points)
    if size <= 1:
        return line
    starts = range(0, len(line.xs), size)
    means = [
        [sum(values[s : s + size]) / len(values[s : s + size]) for s in starts]
        for values in (line.xs, line.ys)
    ]
    return Line(line.name, means[0], means[1])


def ticks(low: float, high: float) -> list[float]:
    """Round values from at or above ``low`` to at or below ``high``, about six."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def line_chart(lines: Sequence[Line], title: str, x_label: str) -> str:
    """The chart as an SVG document.

    Raises:
        ValueError: there is no line of at least two points.
    """
    drawn = [thinned(line) for line in lines if len(line.xs) > 1]
    if not drawn:
        raise ValueError("a chart needs a line of at least two points")
    x_low, x_high = _span([x for line in drawn for x in line.xs])
    y_low, y_high = _span([0.0, *(y for line in drawn for y in line.ys)])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        up = (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return LEFT + across, HEIGHT - BOTTOM - up

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for value in ticks(y_low, y_high):
        _, y = place(x_low, value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(x_low, x_high):
        x, y = place(value, y_low)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{value:g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    for number, line in enumerate(drawn):
        color = COLORS[number % len(COLORS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(place, line.xs, line.ys))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT - 4}" y="{TOP + 14 * (number + 1)}" text-anchor="end" '
            f'fill="{color}">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low, low + 1.0)
