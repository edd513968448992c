"""docs/benchmarks.md and docs/benchmarks.svg, from what was measured; and the same tables for the terminal.

The documents are drawn, never edited. What a person has to say about the figures stands in `bench/notes.md`, if
there is such a file, and is taken over below the verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench import svg_chart
from bench.plan import ROOT, BenchError
from bench.results import Figure, Line, Part, Results

DOCS = ROOT / "docs"
NOTES = Path(__file__).parent / "notes.md"
Table = list[list[str]]

INTRODUCTION = """\
# Benchmarks

Drawn by `make bench`; do not edit. Figures of one machine say little about another, so everything that matters here is
a ratio to a control that ran in the same minute on the same machine and disk, in an order that reads the same forwards
and backwards (A-B-B-A). Medians of all rounds; the range in brackets is that of the rounds.
"""
SHARES_NOTE = """\
Shares are of the whole machine: 100 % is every core. “Idle” includes waiting for the disk. The load generator runs on
the same machine as what it loads, and takes its share from it.
"""


def write(results: Results, docs: Path = DOCS) -> list[Path]:
    """Draws both documents, and names them."""
    if not results.parts:
        raise BenchError("Nothing has been measured yet: run `python -m bench`.")
    docs.mkdir(parents=True, exist_ok=True)
    page, svg = docs / "benchmarks.md", docs / "benchmarks.svg"
    svg.write_text(svg_chart.draw(results.parts), encoding="utf-8")
    page.write_text(build_markdown(results), encoding="utf-8")
    return [page, svg]


def build_markdown(results: Results) -> str:
    parts = list(results.parts.values())
    newest = max(parts, key=lambda part: part.at)
    machine = "\n".join(f"- {name}: {value}" for name, value in results.machine.items())
    sections = [
        INTRODUCTION,
        f"Measured {newest.at}, commit {newest.commit}, on:\n\n{machine}\n",
        "![The main ratios and the growth curves](benchmarks.svg)\n",
        "## What was asked, and what was reached\n",
        _table_to_markdown(build_figure_table([figure for part in parts for figure in part.figures])),
    ]
    if NOTES.exists():
        sections.append(NOTES.read_text(encoding="utf-8"))
    sections += ["## Every measurement\n", SHARES_NOTE]
    for part in parts:
        sections.append(f"### {part.title}\n")
        sections.append(_describe_runs(part) + "\n")
        if part.lines:
            sections.append(_table_to_markdown(build_line_table(part.lines)))
        if part.curves and any(point.ratio for curve in part.curves for point in curve.points):
            sections.append(_table_to_markdown(build_curve_table(part)))
        if part.notes:
            sections.append("\n".join(f"- {note}" for note in part.notes) + "\n")
    return "\n".join(sections)


def part_to_text(part: Part) -> str:
    """One part, for the terminal."""
    tables = [build_line_table(part.lines)] if part.lines else []
    tables += [build_curve_table(part)] if part.curves else []
    tables += [build_figure_table(part.figures)] if part.figures else []
    return "\n\n".join([part.title, *(_table_to_text(table) for table in tables), *part.notes])


# -- tables ------------------------------------------------------------------------------------------------------


def build_figure_table(figures: Sequence[Figure]) -> Table:
    rows = [["", "reached", "asked", "goal", ""]]
    for figure in figures:
        comparator = "≤" if figure.at_most else "≥"
        goal = f"{comparator} {format_value(figure.goal, figure.unit)}" if figure.goal is not None else ""
        threshold = f"{comparator} {format_value(figure.mark, figure.unit)}" if figure.mark is not None else ""
        rows.append([figure.name, _format_with_range(figure), threshold, goal, figure.verdict])
    return rows


def build_line_table(lines: Sequence[Line]) -> Table:
    """A row per line; columns that nobody fills are left out."""
    columns: list[tuple[str, Callable[[Line], str]]] = [
        ("", lambda line: line.name),
        ("per second", _format_rate),
        ("server CPU, µs each", lambda line: _format_median(line, "server_us", 1, "")),
        ("server", lambda line: _format_median(line, "server", 100, " %")),
        ("PostgreSQL", lambda line: _format_median(line, "postgres", 100, " %")),
        ("load generator", lambda line: _format_median(line, "load", 100, " %")),
        ("idle", lambda line: _format_median(line, "idle", 100, " %")),
        ("per commit", lambda line: _format_decimal(line, "per_commit")),
        ("p50, ms", lambda line: _format_decimal(line, "p50_ms")),
        ("p99, ms", lambda line: _format_decimal(line, "p99_ms")),
    ]
    filled = [(title, cell) for title, cell in columns if any(cell(line) for line in lines)]
    return [[title for title, _ in filled], *([cell(line) for _, cell in filled] for line in lines)]


def build_curve_table(part: Part) -> Table:
    """The curves side by side: the ratio to the control where there is one, else the rate."""
    x_values = [point.x for point in part.curves[0].points]
    rows = [[part.axis, *(f"{curve.name}{_curve_unit(curve.points[0].ratio)}" for curve in part.curves)]]
    for i, x_value in enumerate(x_values):
        points = [curve.points[i] for curve in part.curves]
        cells = [format_value(p.ratio, "×") if p.ratio is not None else f"{p.rate:,.0f}" for p in points]
        rows.append([f"{x_value:,.0f}", *cells])
    return rows


def format_value(value: float, unit: str) -> str:
    if unit == "×":
        return f"{value:.2f} ×"
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def _curve_unit(ratio: float | None) -> str:
    return " / control beside it" if ratio is not None else ", per second"


def _format_with_range(figure: Figure) -> str:
    if len(figure.values) < 2:
        return format_value(figure.value, figure.unit)
    low, high = (format_value(value, figure.unit) for value in (min(figure.values), max(figure.values)))
    return f"{format_value(figure.value, figure.unit)} ({low} – {high})"


def _format_rate(line: Line) -> str:
    rates = [run.rate for run in line.runs]
    spread = f" ({min(rates):,.0f} – {max(rates):,.0f})" if len(rates) > 1 else ""
    return f"{line.rate:,.0f}{spread}"


def _format_median(line: Line, field: str, factor: float, unit: str) -> str:
    value = line.median(field)
    return "" if value is None else f"{value * factor:.0f}{unit}"


def _format_decimal(line: Line, field: str) -> str:
    value = line.median(field)
    return "" if value is None else f"{value:.1f}"


def _describe_runs(part: Part) -> str:
    rounds = "one round" if part.rounds == 1 else f"{part.rounds} rounds"
    return f"Measured {part.at}, commit {part.commit}; runs of {part.seconds:g} s, {rounds}."


def _table_to_markdown(table: Table) -> str:
    head, *rows = table
    separator = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, separator, *rows)) + "\n"


def _table_to_text(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def pad_row(row: list[str]) -> str:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        return "  ".join([row[0].ljust(widths[0]), *cells])

    return "\n".join(pad_row(row) for row in table)
