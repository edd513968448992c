"""Writes docs/benchmarks.md, docs/benchmark-results.md and docs/benchmarks.svg, and the same tables for the terminal.

The documents are generated and must not be edited. If `bench/notes.md` exists, its text is included below the table of
targets.
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

For engineers who compare Quarterdeck with a database, a plain server or another queue, or who change its hot path. All
tables are in [benchmark results](benchmark-results.md). `make bench` measures and writes both pages; the explanations
are in `bench/notes.md`.

```
make bench                          # everything
make bench ARGS="spawn cli report"  # some measurements; the others keep their results
```

## Method

Absolute numbers depend on the machine. So the important results are ratios to a control that ran in the same minute on
the same machine and disk, in the order A-B-B-A. Values are medians of all rounds; the range of the rounds is in
parentheses. A run with a wrong response, a lost write or a duplicate ends the benchmark with an error.
"""
RESULTS_INTRODUCTION = """\
# Benchmark results

All tables of the [benchmarks](benchmarks.md), for engineers who compare two commits. `make bench` writes this page.

Shares are of the complete machine: 100 % is all cores. “Idle” includes waiting for the disk. The load generator runs on
the same machine as the server and takes CPU from it.
"""


def write(results: Results, docs: Path = DOCS) -> list[Path]:
    """Write the documents and return their paths."""
    if not results.parts:
        raise BenchError("There are no results yet. Run `python -m bench` first.")
    docs.mkdir(parents=True, exist_ok=True)
    texts = {
        docs / "benchmarks.md": build_summary(results),
        docs / "benchmark-results.md": build_details(results),
        docs / "benchmarks.svg": svg_chart.draw(results.parts),
    }
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return [*texts]


def build_summary(results: Results) -> str:
    parts = list(results.parts.values())
    newest = max(parts, key=lambda part: part.at)
    machine = "\n".join(f"- {name}: {value}" for name, value in results.machine.items())
    sections = [
        INTRODUCTION,
        f"Newest measurement {newest.at}, commit {newest.commit}. The machine:\n\n{machine}\n",
        "![The main ratios and the growth curves](benchmarks.svg)\n",
        "## Targets and results\n",
        _table_to_markdown(build_figure_table([figure for part in parts for figure in part.figures])),
    ]
    if NOTES.exists():
        sections.append(NOTES.read_text(encoding="utf-8"))
    return "\n".join(sections)


def build_details(results: Results) -> str:
    sections = [RESULTS_INTRODUCTION]
    for part in results.parts.values():
        sections.append(f"## {part.title}\n")
        sections.append(_describe_runs(part) + "\n")
        if part.lines:
            sections.append(_table_to_markdown(build_line_table(part.lines)))
        if part.curves and any(point.ratio for curve in part.curves for point in curve.points):
            sections.append(_table_to_markdown(build_curve_table(part)))
        if part.notes:
            sections.append("\n".join(f"- {note}" for note in part.notes) + "\n")
    return "\n".join(sections)


def part_to_text(part: Part) -> str:
    """The text of one part for the terminal."""
    tables = [build_line_table(part.lines)] if part.lines else []
    tables += [build_curve_table(part)] if part.curves else []
    tables += [build_figure_table(part.figures)] if part.figures else []
    return "\n\n".join([part.title, *(_table_to_text(table) for table in tables), *part.notes])


# -- tables ------------------------------------------------------------------------------------------------------


def build_figure_table(figures: Sequence[Figure]) -> Table:
    rows = [["", "measured", "target", "goal", ""]]
    for figure in figures:
        comparator = "≤" if figure.at_most else "≥"
        goal = f"{comparator} {format_value(figure.goal, figure.unit)}" if figure.goal is not None else ""
        threshold = f"{comparator} {format_value(figure.mark, figure.unit)}" if figure.mark is not None else ""
        rows.append([figure.name, _format_with_range(figure), threshold, goal, figure.verdict])
    return rows


def build_line_table(lines: Sequence[Line]) -> Table:
    """One row per line. Empty columns are omitted."""
    columns: list[tuple[str, Callable[[Line], str]]] = [
        ("", lambda line: line.name),
        ("per second", _format_rate),
        ("server CPU per request, µs", lambda line: _format_median(line, "server_us", 1, "")),
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
    """One column per curve: the ratio to the control if there is one, otherwise the rate."""
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
    return " / control" if ratio is not None else ", per second"


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
