"""docs/benchmarks.md and docs/benchmarks.svg, from what was measured; and the same tables for the terminal.

The documents are drawn, never edited. What a person has to say about the figures stands in `bench/notes.md`, if
there is such a file, and is taken over below the verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench import picture
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
READING = """\
Shares are of the whole machine: 100 % is every core. “Idle” includes waiting for the disk. The load generator runs on
the same machine as what it loads, and takes its share from it.
"""


def write(results: Results, docs: Path = DOCS) -> list[Path]:
    """Draws both documents, and names them."""
    if not results.parts:
        raise BenchError("Nothing has been measured yet: run `python -m bench`.")
    docs.mkdir(parents=True, exist_ok=True)
    page, drawing = docs / "benchmarks.md", docs / "benchmarks.svg"
    drawing.write_text(picture.draw(results.parts), encoding="utf-8")
    page.write_text(markdown(results), encoding="utf-8")
    return [page, drawing]


def markdown(results: Results) -> str:
    parts = list(results.parts.values())
    newest = max(parts, key=lambda part: part.at)
    told = "\n".join(f"- {name}: {value}" for name, value in results.machine.items())
    pieces = [
        INTRODUCTION,
        f"Measured {newest.at}, commit {newest.commit}, on:\n\n{told}\n",
        "![The main ratios and the growth curves](benchmarks.svg)\n",
        "## What was asked, and what was reached\n",
        _as_markdown(figure_table([figure for part in parts for figure in part.figures])),
    ]
    if NOTES.exists():
        pieces.append(NOTES.read_text(encoding="utf-8"))
    pieces += ["## Every measurement\n", READING]
    for part in parts:
        pieces.append(f"### {part.title}\n")
        pieces.append(_how(part) + "\n")
        if part.lines:
            pieces.append(_as_markdown(line_table(part.lines)))
        if part.curves and any(point.ratio for curve in part.curves for point in curve.points):
            pieces.append(_as_markdown(curve_table(part)))
        if part.notes:
            pieces.append("\n".join(f"- {note}" for note in part.notes) + "\n")
    return "\n".join(pieces)


def as_text(part: Part) -> str:
    """One part, for the terminal."""
    tables = [line_table(part.lines)] if part.lines else []
    tables += [curve_table(part)] if part.curves else []
    tables += [figure_table(part.figures)] if part.figures else []
    return "\n\n".join([part.title, *(_as_columns(table) for table in tables), *part.notes])


# -- tables ------------------------------------------------------------------------------------------------------


def figure_table(figures: Sequence[Figure]) -> Table:
    rows = [["", "reached", "asked", "goal", ""]]
    for figure in figures:
        word = "≤" if figure.at_most else "≥"
        goal = f"{word} {shown(figure.goal, figure.unit)}" if figure.goal is not None else ""
        asked = f"{word} {shown(figure.mark, figure.unit)}" if figure.mark is not None else ""
        rows.append([figure.name, _with_range(figure), asked, goal, figure.verdict])
    return rows


def line_table(lines: Sequence[Line]) -> Table:
    """A row per line; columns that nobody fills are left out."""
    columns: list[tuple[str, Callable[[Line], str]]] = [
        ("", lambda line: line.name),
        ("per second", _rate),
        ("server CPU, µs each", lambda line: _number(line, "server_us", 1, "")),
        ("server", lambda line: _number(line, "server", 100, " %")),
        ("PostgreSQL", lambda line: _number(line, "postgres", 100, " %")),
        ("load generator", lambda line: _number(line, "load", 100, " %")),
        ("idle", lambda line: _number(line, "idle", 100, " %")),
        ("per commit", lambda line: _fraction(line, "per_commit")),
        ("p50, ms", lambda line: _fraction(line, "p50_ms")),
        ("p99, ms", lambda line: _fraction(line, "p99_ms")),
    ]
    filled = [(title, cell) for title, cell in columns if any(cell(line) for line in lines)]
    return [[title for title, _ in filled], *([cell(line) for _, cell in filled] for line in lines)]


def curve_table(part: Part) -> Table:
    """The curves side by side: the ratio to the control where there is one, else the rate."""
    places = [point.x for point in part.curves[0].points]
    rows = [[part.axis, *(f"{curve.name}{_of(curve.points[0].ratio)}" for curve in part.curves)]]
    for i, place in enumerate(places):
        points = [curve.points[i] for curve in part.curves]
        cells = [shown(p.ratio, "×") if p.ratio is not None else f"{p.rate:,.0f}" for p in points]
        rows.append([f"{place:,.0f}", *cells])
    return rows


def shown(value: float, unit: str) -> str:
    if unit == "×":
        return f"{value:.2f} ×"
    return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"


def _of(ratio: float | None) -> str:
    return " / control beside it" if ratio is not None else ", per second"


def _with_range(figure: Figure) -> str:
    if len(figure.values) < 2:
        return shown(figure.value, figure.unit)
    low, high = (shown(value, figure.unit) for value in (min(figure.values), max(figure.values)))
    return f"{shown(figure.value, figure.unit)} ({low} – {high})"


def _rate(line: Line) -> str:
    rates = [run.rate for run in line.runs]
    spread = f" ({min(rates):,.0f} – {max(rates):,.0f})" if len(rates) > 1 else ""
    return f"{line.rate:,.0f}{spread}"


def _number(line: Line, field: str, times: float, unit: str) -> str:
    value = line.median(field)
    return "" if value is None else f"{value * times:.0f}{unit}"


def _fraction(line: Line, field: str) -> str:
    value = line.median(field)
    return "" if value is None else f"{value:.1f}"


def _how(part: Part) -> str:
    rounds = "one round" if part.rounds == 1 else f"{part.rounds} rounds"
    return f"Measured {part.at}, commit {part.commit}; runs of {part.seconds:g} s, {rounds}."


def _as_markdown(table: Table) -> str:
    head, *rows = table
    ruler = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows)) + "\n"


def _as_columns(table: Table) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]

    def padded(row: list[str]) -> str:
        numbers = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        return "  ".join([row[0].ljust(widths[0]), *numbers])

    return "\n".join(padded(row) for row in table)
