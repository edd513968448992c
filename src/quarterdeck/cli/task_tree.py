"""Draws a task with its dependencies and dependents. Pure: tasks and colors are arguments.

A task that several paths lead to has a line for each path. The tasks below it are drawn only under its first line. The
other lines are marked `(also above)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quarterdeck.cli.output import TextStyler, cell, clip, pad, width
from quarterdeck.cli.session_tree import UNICODE_GLYPHS, TreeGlyphs, walk
from quarterdeck.client.api import Document, page_items

ALREADY_SHOWN = "(also above)"
_TITLE_WIDTH = 60


class Row(NamedTuple):
    """A line: the branch drawn before it, and a task id or a heading."""

    branch: str
    label: str
    is_heading: bool = False
    is_repeat: bool = False


def draw(document: Document, root_id: str, styler: TextStyler, glyphs: TreeGlyphs = UNICODE_GLYPHS) -> str:
    """Draw the tasks. `root_id` is the task at the root of the drawing."""
    tasks = {str(task.get("id")): task for task in page_items(document)}
    dependencies: dict[str, list[str]] = {
        task_id: _listed_ids(task, "dependsOn", tasks) for task_id, task in tasks.items()
    }
    dependents: dict[str, list[str]] = {}
    for task_id, dependency_ids in dependencies.items():
        for dependency_id in dependency_ids:
            dependents.setdefault(dependency_id, []).append(task_id)
    rows = [Row("", root_id)]
    sections = [
        (title, edges) for title, edges in (("depends on", dependencies), ("blocks", dependents)) if edges.get(root_id)
    ]
    for index, (title, edges) in enumerate(sections):
        connector, indent = (glyphs.corner, glyphs.blank) if index == len(sections) - 1 else (glyphs.tee, glyphs.bar)
        rows.append(Row(connector, title, is_heading=True))
        rows += _subtree_rows(root_id, edges, indent, glyphs)
    return _render_rows(rows, tasks, root_id, styler)


def _subtree_rows(root: str, edges: Mapping[str, Sequence[str]], indent: str, glyphs: TreeGlyphs) -> list[Row]:
    """Return all lines below the root, depth first."""
    seen: set[str] = {root}

    def unseen_children(task_id: str) -> Sequence[str]:
        if task_id in seen:
            return ()
        seen.add(task_id)
        return edges.get(task_id, ())

    lines = walk(edges.get(root, ()), unseen_children, glyphs, indent)
    return [Row(branch, task_id, is_repeat=task_id in seen) for branch, task_id in lines]


def _render_rows(rows: Sequence[Row], tasks: Mapping[str, Document], root_id: str, styler: TextStyler) -> str:
    # Each character of a branch takes one column, so only the ids need measuring.
    id_width = max(len(row.branch) + width(cell(row.label)) for row in rows if not row.is_heading)
    states = [_format_state(tasks.get(row.label, {})) for row in rows if not row.is_heading]
    state_width = max(map(width, states))
    output_lines = []
    for row in rows:
        if row.is_heading:
            output_lines.append(row.branch + styler.dim(row.label))
            continue
        task = tasks.get(row.label, {})
        head = row.branch + pad(cell(row.label), id_width - len(row.branch))
        state = _format_state(task)
        state_text = styler.color_by_status(cell(task.get("status")), pad(state, state_width))
        suffix = styler.dim(ALREADY_SHOWN) if row.is_repeat else ""
        title = clip(cell(task.get("title")), _TITLE_WIDTH)
        output_lines.append(
            "  ".join([styler.bold(head) if row.label == root_id else head, state_text, title, suffix]).rstrip()
        )
    return "\n".join(output_lines)


def _format_state(task: Document) -> str:
    status, percent = cell(task.get("status")), task.get("progressPercent")
    return f"{status} {percent}%" if status == "RUNNING" and isinstance(percent, int) else status


def _listed_ids(task: Document, field: str, tasks: Mapping[str, Document]) -> list[str]:
    """Return the ids in the field whose tasks are in the response. Tasks beyond the depth limit are missing."""
    ids = task.get(field)
    return [str(task_id) for task_id in ids if str(task_id) in tasks] if isinstance(ids, list) else []
