"""Trees of sessions for tests of termination and suspension rules, generated or written by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from hypothesis import HealthCheck, settings, strategies as st

from quarterdeck.domain.sessions.model import Cascade, Session, TreeNode
from tests.support.builders import NOW, ZONE, session_row
from tests.support.rounds import ROUNDS

DATABASE_EXAMPLES = settings(
    max_examples=15 * ROUNDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""For generated examples on a database. Each example has its own zone on the runtime of the test."""


def shapes(max_size: int = 12, *, one_tree: bool = False) -> st.SearchStrategy[list[int | None]]:
    """Generate, for each session, the index of its parent, which comes before it, or None. A forest or one tree."""

    def shape(numbers: list[int]) -> list[int | None]:
        parents: list[int | None] = [None]
        for index, number in enumerate(numbers, 1):
            choice = number % (index if one_tree else index + 1)
            parents.append(None if choice == index else choice)
        return parents

    return st.lists(st.integers(0, 1_000), max_size=max_size - 1).map(shape)


def session_rows(parents: Sequence[int | None]) -> list[Session]:
    """Live sessions `s00`, `s01`, … with these parents."""
    sessions: list[Session] = []
    for index, parent in enumerate(parents):
        sessions.append(session_row(id=f"s{index:02}", parent=None if parent is None else sessions[parent]))
    return sessions


def tree_node(row: Session, **changes: object) -> TreeNode:
    fields = {name: getattr(row, name) for name in TreeNode.__struct_fields__}
    return msgspec.convert([(fields | changes)[name] for name in TreeNode.__struct_fields__], TreeNode)


def parents_first(sessions: Sequence[Session]) -> list[Session]:
    """Sort sessions in the order of the SQL statements."""
    return sorted(sessions, key=lambda row: (row.depth, row.id))


def subtree_ids(top: str, sessions: Sequence[Session] | Sequence[TreeNode]) -> set[str]:
    """The ids of a session and its descendants, by repeated search."""
    found = {top}
    while more := {row.id for row in sessions if row.parent_id in found} - found:
        found |= more
    return found


def ancestors(session_id: str, sessions: Sequence[Session] | Sequence[TreeNode]) -> Iterator[str]:
    """A session's ancestors, nearest first."""
    parents = {row.id: row.parent_id for row in sessions}
    parent = parents[session_id]
    while parent is not None:
        yield parent
        parent = parents[parent]


def cascade_row(cascade_id: str, target: str | None = None, started_at: int = NOW, **fields: object) -> Cascade:
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "id": cascade_id,
        "target_id": target,
        "reason": f"reason of {cascade_id}",
        "actor": f"actor of {cascade_id}",
        "trace": None,
        "stamped": 1,
        "settled": 0,
        "started_at": started_at,
        "finished_at": None,
    }
    row = defaults | fields
    return msgspec.convert([row[name] for name in Cascade.__struct_fields__], Cascade)
