"""Renders the output of `qd session tree` as an SVG picture of a terminal.

    qd session tree "$session" | python tools/render_tree_svg.py 'qd session tree "$planner"' > docs/images/tree.svg

The argument is the command that the picture shows above the output. The panel has its own background, so the picture
is readable on light and on dark pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from html import escape

FONT_SIZE = 14
COLUMN_WIDTH = FONT_SIZE * 0.6
LINE_HEIGHT = 22
PADDING = 20
TITLE_BAR_HEIGHT = 34

BACKGROUND, BORDER, TEXT, DIM = "#161b22", "#444c56", "#e6edf3", "#9198a1"
STATUS_COLORS = {"active": "#56d364", "suspended": "#e3b341", "terminated": DIM}
BUTTON_COLORS = ("#f47067", "#e3b341", "#56d364")
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# The parts of a line that are not in the color of normal text: its branches, the id and the status.
_COLORED_PART = re.compile(
    r"(?P<dim>^[├└│─ |`-]*[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"|\b(?P<status>active|suspended|terminated)\b(?! for)"
)


def render(command: str, output: str) -> str:
    lines = [f"$ {command}", *output.rstrip("\n").split("\n")]
    width = max(len(line) for line in lines) * COLUMN_WIDTH + 2 * PADDING
    height = TITLE_BAR_HEIGHT + len(lines) * LINE_HEIGHT + PADDING
    return "\n".join(_document(lines, round(width), height)) + "\n"


def _document(lines: Sequence[str], width: int, height: int) -> Iterator[str]:
    label = escape(f"Terminal: {lines[0]}", quote=True)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{label}">'
    )
    yield (
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="{BACKGROUND}" '
        f'stroke="{BORDER}"/>'
    )
    for number, color in enumerate(BUTTON_COLORS):
        yield f'<circle cx="{PADDING + 2 + number * 18}" cy="{TITLE_BAR_HEIGHT / 2 + 1:g}" r="5.5" fill="{color}"/>'
    yield f'<g font-family="{FONTS}" font-size="{FONT_SIZE}" fill="{TEXT}">'
    for number, line in enumerate(lines):
        y = TITLE_BAR_HEIGHT + (number + 1) * LINE_HEIGHT - 6
        # textLength keeps the columns aligned if the viewer's font is wider or narrower.
        yield (
            f'<text x="{PADDING}" y="{y}" textLength="{len(line) * COLUMN_WIDTH:g}" lengthAdjust="spacingAndGlyphs" '
            f'xml:space="preserve">{_colored(line)}</text>'
        )
    yield "</g>"
    yield "</svg>"


def _colored(line: str) -> str:
    parts, end = [], 0
    for match in _COLORED_PART.finditer(line):
        color = DIM if match["dim"] else STATUS_COLORS[match["status"]]
        parts.append(escape(line[end : match.start()]))
        parts.append(f'<tspan fill="{color}">{escape(match[0])}</tspan>')
        end = match.end()
    return "".join(parts) + escape(line[end:])


if __name__ == "__main__":
    sys.stdout.write(render(sys.argv[1] if len(sys.argv) > 1 else "qd session tree", sys.stdin.read()))
