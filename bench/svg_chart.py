"""The chart of the benchmarks as SVG: bars relative to their targets, and the growth curves.

The length of a bar is the figure divided by its target, so that figures of all units share one scale. In the first
group bars should reach the line, in the second they should not. The verdict is also written as text, not only shown by
colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from bench.results import Curve, Figure, Part, Point

WIDTH = 960
MARGIN = 32
LABEL_WIDTH = 372
UNIT_WIDTH = 190
"""The length of a bar that reaches its target exactly."""
MAX_UNITS = 2.0
"""Longer bars are cut and marked with an arrow."""
ROW_HEIGHT = 26
CHART_HEIGHT = 250
CURVE_NAME_WIDTH = 118
"""Space at the right of a chart for the names of its curves."""
STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink) }
.title { font-size: 16px; font-weight: 600 }
.quiet { fill: var(--quiet); font-size: 12px }
.end { text-anchor: end }
.middle { text-anchor: middle }
.page { fill: var(--page) }
.grid { stroke: var(--grid); stroke-width: 1 }
.target { stroke: var(--ink); stroke-width: 1.5 }
.goal { stroke: var(--quiet); stroke-width: 1.5; stroke-dasharray: 3 3 }
.met { fill: var(--met) }
.missed { fill: var(--missed) }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round }
.a { stroke: var(--a) } .dot.a { fill: var(--a) }
.b { stroke: var(--b) } .dot.b { fill: var(--b) }
.c { stroke: var(--c) } .dot.c { fill: var(--c) }
.dot { stroke: var(--page); stroke-width: 2 }
:root { --page: #fcfcfb; --ink: #1d1d1b; --quiet: #6b6a66; --grid: #e4e3df;
  --met: #2a78d6; --missed: #d03b3b; --a: #2a78d6; --b: #c2571a; --c: #11875d }
@media (prefers-color-scheme: dark) { :root { --page: #1a1a19; --ink: #f2f1ee; --quiet: #a3a19a; --grid: #383835;
  --met: #3987e5; --missed: #e66767; --a: #3987e5; --b: #e08345; --c: #27b583 } }
"""
COLOURS = {"PostgreSQL, one hot zone": "a", "PostgreSQL, 64 zones": "b", "SQLite, one hot zone": "c"}


@dataclass(slots=True)
class Canvas:
    """Collects elements from top to bottom. `y` is the position of the next one."""

    y: float = MARGIN
    elements: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, content: str, css_class: str = "") -> None:
        self.elements.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{css_class}">{escape(content)}</text>')

    def line(self, start: tuple[float, float], end: tuple[float, float], css_class: str) -> None:
        (x1, y1), (x2, y2) = start, end
        self.elements.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css_class}"/>')

    def bar(self, x: float, y: float, width: float, css_class: str) -> None:
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="14" rx="2" class="{css_class}"/>'
        )

    def curve(self, points: Sequence[tuple[float, float]], colour: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.elements.append(f'<polyline points="{path}" class="curve {colour}"/>')
        for x, y in points:
            self.elements.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" class="dot {colour}"/>')

    def svg(self) -> str:
        height = round(self.y + MARGIN)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
                f' width="{WIDTH}" height="{height}" role="img" aria-label="Benchmarks of Quarterdeck">',
                f"<style>{STYLE}</style>",
                f'<rect width="{WIDTH}" height="{height}" class="page"/>',
                *self.elements,
                "</svg>\n",
            ]
        )


def draw(parts: Mapping[str, Part]) -> str:
    canvas = Canvas()
    # Only figures with a target.
    figures = [figure for part in parts.values() for figure in part.figures if figure.mark is not None]
    _draw_bars(canvas, "Should reach the line", [figure for figure in figures if not figure.at_most])
    _draw_bars(canvas, "Should stay below the line", [figure for figure in figures if figure.at_most])
    half = (WIDTH - 2 * MARGIN - 24) / 2
    charts = [parts[name] for name in ("connections", "growth") if name in parts]
    for number, part in enumerate(charts):
        _draw_chart(canvas, part, MARGIN + number * (half + 24), half)
    if charts:
        canvas.y += CHART_HEIGHT + 92
    return canvas.svg()


# -- bars --------------------------------------------------------------------------------------------------------


def _draw_bars(canvas: Canvas, title: str, figures: Sequence[Figure]) -> None:
    if not figures:
        return
    canvas.text(MARGIN, canvas.y + 8, title, "title")
    canvas.y += 24
    top = canvas.y
    for figure in figures:
        _draw_bar(canvas, figure)
        canvas.y += ROW_HEIGHT
    threshold_x = MARGIN + LABEL_WIDTH + UNIT_WIDTH
    canvas.line((threshold_x, top - 2), (threshold_x, canvas.y), "target")
    canvas.text(threshold_x, canvas.y + 14, "target", "quiet middle")
    if any(figure.goal for figure in figures):
        canvas.text(threshold_x + UNIT_WIDTH * 0.58, canvas.y + 14, "goal (dashed)", "quiet middle")
    canvas.y += 44


def _draw_bar(canvas: Canvas, figure: Figure) -> None:
    assert figure.mark is not None
    left, ratio = MARGIN + LABEL_WIDTH, figure.value / figure.mark
    canvas.text(left - 12, canvas.y + 12, figure.name, "end")
    units = min(ratio, MAX_UNITS)
    canvas.bar(left, canvas.y + 1, units * UNIT_WIDTH, "missed" if figure.verdict == "missed" else "met")
    if figure.goal is not None:
        x = left + min(figure.goal / figure.mark, MAX_UNITS) * UNIT_WIDTH
        canvas.line((x, canvas.y - 3), (x, canvas.y + 19), "goal")
    decimals = 2 if figure.unit == "×" else 1 if figure.value < 10 else 0
    number = f"{figure.value:.{decimals}f} {figure.unit}"
    arrow = " →" if ratio > MAX_UNITS else ""
    canvas.text(left + MAX_UNITS * UNIT_WIDTH + 14, canvas.y + 12, f"{number}{arrow} · {figure.verdict}", "quiet")


# -- curves ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChartFrame:
    """The area of a chart's curves. The x positions have equal distances: each value is a multiple of the last one."""

    xs: list[float]
    top: float
    left: float
    right: float
    largest: float

    @property
    def bottom(self) -> float:
        return self.top + CHART_HEIGHT

    def y(self, value: float) -> float:
        return self.bottom - value / _axis_max(self.largest) * CHART_HEIGHT


def _draw_chart(canvas: Canvas, part: Part, left: float, width: float) -> None:
    is_ratio = all(point.ratio is not None for curve in part.curves for point in curve.points)
    value: Callable[[Point], float] = (lambda point: point.ratio or 0.0) if is_ratio else (lambda point: point.rate)
    x_values = [point.x for point in part.curves[0].points]
    start, end = left + 60, left + width - CURVE_NAME_WIDTH - 16
    xs = [start + i * (end - start) / max(1, len(x_values) - 1) for i in range(len(x_values))]
    largest = max(value(point) for curve in part.curves for point in curve.points)
    frame = ChartFrame(xs, canvas.y + 44, left + 44, left + width - CURVE_NAME_WIDTH, largest)
    canvas.text(left, canvas.y + 8, part.title, "title")
    canvas.text(left, canvas.y + 28, f"spawns {'relative to the control' if is_ratio else 'per second'}", "quiet")
    _draw_axes(canvas, frame, [_format_x(x_value) for x_value in x_values], part.axis)
    ends = []
    for curve in part.curves:
        points = [(x, frame.y(value(point))) for x, point in zip(xs, curve.points, strict=True)]
        canvas.curve(points, COLOURS.get(curve.name, "a"))
        ends.append((curve, points[-1][1]))
    for curve, y in _spread_labels(ends):
        engine, _, scenario = curve.name.partition(", ")
        canvas.text(xs[-1] + 14, y - 2, engine)
        canvas.text(xs[-1] + 14, y + 12, scenario, "quiet")


def _draw_axes(canvas: Canvas, frame: ChartFrame, x_labels: Sequence[str], axis: str) -> None:
    step = _grid_step(frame.largest)
    for i in range(round(_axis_max(frame.largest) / step) + 1):
        y = frame.y(i * step)
        canvas.line((frame.left, y), (frame.right, y), "grid")
        canvas.text(frame.left - 8, y + 4, _format_tick(i * step, step), "quiet end")
    for x, x_label in zip(frame.xs, x_labels, strict=True):
        canvas.text(x, frame.bottom + 18, x_label, "quiet middle")
    canvas.text((frame.left + frame.right) / 2, frame.bottom + 38, axis, "quiet middle")


def _spread_labels(ends: Sequence[tuple[Curve, float]]) -> list[tuple[Curve, float]]:
    """Put names next to the ends of their curves, moved down where they would overlap."""
    spread: list[tuple[Curve, float]] = []
    for curve, y in sorted(ends, key=lambda end: end[1]):
        spread.append((curve, max(y, spread[-1][1] + 32) if spread else y))
    return spread


def _grid_step(largest: float) -> float:
    """The distance of grid lines: a round number, about a quarter of the largest value."""
    rough = max(largest, 1e-9) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)


def _axis_max(largest: float) -> float:
    return _grid_step(largest) * math.ceil(largest / _grid_step(largest) + 1e-9)


def _format_tick(value: float, step: float) -> str:
    return f"{value:,.0f}" if step >= 1 else f"{value:.2f}".rstrip("0").rstrip(".")


def _format_x(x: float) -> str:
    if x == 0:
        return "empty"
    return f"{x / 1e6:g} M" if x >= 1e6 else f"{x / 1e3:g} k" if x >= 1e3 else f"{x:g}"
