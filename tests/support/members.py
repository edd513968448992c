"""Trees of sessions as the rules of endings and suspensions are given them, drawn by chance or written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from hypothesis import HealthCheck, settings, strategies as st

from quarterdeck.domain.sessions.model import Cascade, Session, TreeNode
from tests.support.asking import NOW, ZONE, session
from tests.support.rounds import ROUNDS

ON_A_DATABASE = settings(
    max_examples=15 * ROUNDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""For what chance draws and a database decides: each example has a zone of its own on the test's one keel."""


def shapes(max_size: int = 12, *, one_tree: bool = False) -> st.SearchStrategy[list[int | None]]:
    """For each session the number of its parent, which stands before it, or None; one tree, or a forest."""

    def shape(numbers: list[int]) -> list[int | None]:
        parents: list[int | None] = [None]
        for own, number in enumerate(numbers, 1):
            choice = number % (own if one_tree else own + 1)
            parents.append(None if choice == own else choice)
        return parents

    return st.lists(st.integers(0, 1_000), max_size=max_size - 1).map(shape)


def rows(parents: Sequence[int | None]) -> list[Session]:
    """Live sessions `s00`, `s01`, … in this shape."""
    made: list[Session] = []
    for own, parent in enumerate(parents):
        made.append(session(id=f"s{own:02}", parent=None if parent is None else made[parent]))
    return made


def member_of(row: Session, **changed: object) -> TreeNode:
    known = {name: getattr(row, name) for name in TreeNode.__struct_fields__}
    return msgspec.convert([(known | changed)[name] for name in TreeNode.__struct_fields__], TreeNode)


def parents_first(sessions: Sequence[Session]) -> list[Session]:
    """As the statements give them."""
    return sorted(sessions, key=lambda row: (row.depth, row.id))


def below(top: str, sessions: Sequence[Session] | Sequence[TreeNode]) -> set[str]:
    """A session and everything under it, found the slow way."""
    found = {top}
    while more := {row.id for row in sessions if row.parent_id in found} - found:
        found |= more
    return found


def line(own: str, sessions: Sequence[Session] | Sequence[TreeNode]) -> Iterator[str]:
    """A session's ancestors, nearest first."""
    parents = {row.id: row.parent_id for row in sessions}
    parent = parents[own]
    while parent is not None:
        yield parent
        parent = parents[parent]


def cascade(own: str, target: str | None = None, started_at: int = NOW, **stored: object) -> Cascade:
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "id": own,
        "target_id": target,
        "reason": f"reason of {own}",
        "actor": f"actor of {own}",
        "trace": None,
        "stamped": 1,
        "settled": 0,
        "started_at": started_at,
        "finished_at": None,
    }
    row = plain | stored
    return msgspec.convert([row[name] for name in Cascade.__struct_fields__], Cascade)
