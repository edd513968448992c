"""What ends together, and in which order.

An ending takes a session and everything alive under it. What fits into one transaction is ended in it. What does not is
*stamped* in one transaction, whole: from that commit on it reads as terminated, counts nowhere and starts nothing.
Chunks then settle it in the order that the stamp laid down, children before parents, one event each.

Two endings may overlap: somebody ends a branch, then somebody else the tree. What the first has stamped is the first's
to settle, and the second waits its turn, so that in the log no parent ends before its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions.model import Cascade, Session, State, StopZone, Terminate, TerminateResult, TreeNode
from quarterdeck.domain.sessions.rules.states import TTL_EXPIRED, is_live, ownership_required, session_not_found

Ref = tuple[str, str]
"""(zone, session)"""
TerminateCommand = Terminate | StopZone


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A session that ends: by whom, why, and when it ended, which for the expired was in the past."""

    node: TreeNode
    command: TerminateCommand
    reason: str
    ended_at: Millis


@dataclass(frozen=True, slots=True)
class TerminateBatchInput:
    """Everything an ending may know, read under the zones' locks."""

    now: Millis
    targets: Mapping[Ref, Session]
    nodes: Mapping[tuple[str, str | None], Sequence[TreeNode]]
    """By (zone, session asked for; None for the whole zone): what is alive or stamped under it, parents first."""
    open_cascades: Mapping[Ref, Cascade] = field(default_factory=dict)
    """By (zone, cascade): the endings under way."""


class TerminateDecider:
    """What a batch of asks ends: each session once, by the first ask that reaches it."""

    def __init__(self, loaded: TerminateBatchInput, chunk_size: int) -> None:
        self._loaded = loaded
        self._chunk_size = chunk_size
        self._taken: dict[Ref, str | None] = {}
        """By what is taken: the cascade that has it, or None where this transaction settles it."""
        self.terminated: list[SessionEnd] = []
        self.marked: list[tuple[Cascade, list[SessionEnd]]] = []

    def decide(self, command: TerminateCommand, cascade_id: str) -> TerminateResult | Problem:
        """`cascade_id` is the name of the ending, should it become one of many transactions."""
        nodes = self._nodes(command)
        if isinstance(command, Terminate):
            target = self._loaded.targets.get((command.zone_id, command.session_id))
            if target is None and not command.also_terminate:
                return session_not_found(command.session_id)
            if command.caller and target and not command.caller.can_act_for(target.application_id, "spawn_for"):
                return ownership_required(target.application_id)
        unended = [
            node for node in post_order(nodes) if node.terminated_at is None and _node_ref(node) not in self._taken
        ]
        overlapping = self._overlapping_cascades(nodes)
        if not unended:
            return self._join(command, overlapping)
        ends = [self._session_end(node, command) for node in unended]
        if not overlapping and len(self.terminated) + len(unended) <= self._chunk_size:
            self.terminated += ends
            self._taken.update((_node_ref(node), None) for node in unended)
            return TerminateResult(command.zone_id, command.session_id, command.reason, len(unended))
        self._mark(command, cascade_id, ends, overlapping)
        return TerminateResult(command.zone_id, command.session_id, command.reason, len(unended), cascade_id)

    def _nodes(self, command: TerminateCommand) -> Sequence[TreeNode]:
        root_ids = (command.session_id, *(command.also_terminate if isinstance(command, Terminate) else ()))
        found = [self._loaded.nodes.get((command.zone_id, root_id), ()) for root_id in root_ids]
        # Of those that end together one may stand under another.
        return [*{node.id: node for group in found for node in group}.values()] if found[1:] else found[0]

    def _overlapping_cascades(self, nodes: Iterable[TreeNode]) -> list[Cascade]:
        """The endings under way that have a part of this, the one that began last at the end."""
        if not self._loaded.open_cascades and not self.marked:
            return []
        new_cascades = {(cascade.zone_id, cascade.id): cascade for cascade, _ in self.marked}
        cascade_ids = {node.cascade_id or self._taken.get(_node_ref(node)) for node in nodes}
        found = [
            cascade for ref, cascade in {**self._loaded.open_cascades, **new_cascades}.items() if ref[1] in cascade_ids
        ]
        return sorted(found, key=lambda cascade: (cascade.started_at, cascade.id))

    def _join(self, command: TerminateCommand, overlapping: Sequence[Cascade]) -> TerminateResult:
        """Nothing is left to end: it has ended, or somebody is about to have ended it."""
        if not overlapping:
            return TerminateResult(command.zone_id, command.session_id, command.reason, 0)
        last = overlapping[-1]
        return TerminateResult(command.zone_id, command.session_id, last.reason, 0, last.id, joined=True)

    def _session_end(self, node: TreeNode, command: TerminateCommand) -> SessionEnd:
        # What had expired was ended by its time, and at its time, whoever comes to say so.
        if is_live(node, self._loaded.now):
            return SessionEnd(node, command, command.reason, self._loaded.now)
        return SessionEnd(node, command, TTL_EXPIRED, min(node.expires_at, self._loaded.now))

    def _mark(
        self, command: TerminateCommand, cascade_id: str, ends: list[SessionEnd], overlapping: Sequence[Cascade]
    ) -> None:
        started_at = max([self._loaded.now, *(cascade.started_at + 1 for cascade in overlapping)])
        cascade = Cascade(
            command.zone_id,
            cascade_id,
            command.session_id,
            command.reason,
            command.actor,
            command.trace,
            len(ends),
            0,
            started_at,
            None,
        )
        self.marked.append((cascade, ends))
        self._taken.update((_node_ref(end.node), cascade_id) for end in ends)


def _node_ref(node: TreeNode) -> Ref:
    return node.zone_id, node.id


def post_order(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    """Trees, given parents first, as they end: depth first, each session after all of its descendants."""
    ids = {node.id for node in nodes}
    children: dict[str | None, list[TreeNode]] = {}
    roots = []
    for node in nodes:
        if node.parent_id in ids:
            children.setdefault(node.parent_id, []).append(node)
        else:
            roots.append(node)
    # Parents first from the last child to the first, turned round: what recursion would give, at any depth.
    reversed_order: dict[str, TreeNode] = {}
    _walk(roots, children, reversed_order)
    if len(reversed_order) < len(nodes):
        # No top leads to a circle. No spawn can close one; a hand in the database can, and it must end all the same.
        for node in nodes:
            _walk([node], children, reversed_order)
    return [*reversed_order.values()][::-1]


def _walk(
    pending: list[TreeNode], children: Mapping[str | None, Sequence[TreeNode]], visited: dict[str, TreeNode]
) -> None:
    while pending:
        node = pending.pop()
        if node.id not in visited:
            visited[node.id] = node
            pending += children.get(node.id, ())


def remaining_reasons(nodes: Sequence[TreeNode]) -> dict[str, str]:
    """Why each of these sessions, found after an ending that should have ended it, is still there."""
    return {
        node.id: "spawned since" if node.terminated_at is None else "stamped, and settled by a sweep soon"
        for node in nodes
        if node.status is not State.TERMINATED
    }
