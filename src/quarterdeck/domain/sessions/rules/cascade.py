"""Decides what is terminated together, and in which order.

A termination includes a session and its live descendants. If they fit into one transaction, it terminates them all.
Otherwise, all of them are *marked* in one transaction: from that commit on, they read as terminated, count against no
quota and cannot start anything. Chunks then terminate them in the order of the marks, children before parents, with one
event each.

Cascades may overlap: one request terminates a branch, then another request terminates its tree. The first cascade
terminates the sessions that it has marked, and the second waits for it, so that in the event log no parent ends before
its children.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access.rules import is_live
from quarterdeck.domain.sessions.model import Cascade, Session, State, StopZone, Terminate, TerminateResult, TreeNode
from quarterdeck.domain.sessions.rules.states import TTL_EXPIRED, ownership_required, session_not_found

TerminateCommand = Terminate | StopZone


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """A session to terminate. If it had already expired, `ended_at` is the time of its expiry."""

    node: TreeNode
    command: TerminateCommand
    reason: str
    ended_at: Millis


@dataclass(frozen=True, slots=True)
class TerminateBatchInput:
    """The input of a batch, loaded under the zones' locks."""

    now: Millis
    targets: Mapping[Ref, Session]
    nodes: Mapping[tuple[str, str | None], Sequence[TreeNode]]
    """By (zone, target): the target and its live or marked descendants, parents first. A target of None means the
    whole zone."""
    open_cascades: Mapping[Ref, Cascade] = field(default_factory=dict)
    """Unfinished cascades by (zone, cascade)."""


class TerminateDecider:
    """Decides the terminations of one batch. Each session is terminated once, by the first command that includes it."""

    def __init__(self, loaded: TerminateBatchInput, chunk_size: int) -> None:
        self._loaded = loaded
        self._chunk_size = chunk_size
        self._decided: dict[Ref, str | None] = {}
        """Sessions that earlier commands terminate, each with the cascade that marks it, or None if none does."""
        self.terminated: list[SessionEnd] = []
        self.marked: list[tuple[Cascade, list[SessionEnd]]] = []

    def decide(self, command: TerminateCommand, cascade_id: str) -> TerminateResult | Problem:
        """`cascade_id` is used if the termination takes several transactions."""
        nodes = self._nodes(command)
        if isinstance(command, Terminate):
            target = self._loaded.targets.get((command.zone_id, command.session_id))
            if target is None and not command.also_terminate:
                return session_not_found(command.session_id)
            if command.caller and target and not command.caller.can_act_for(target.application_id, "spawn_for"):
                return ownership_required(target.application_id)
        to_terminate = [
            node for node in post_order(nodes) if node.terminated_at is None and _node_ref(node) not in self._decided
        ]
        overlapping = self._overlapping_cascades(nodes)
        if not to_terminate:
            return self._join(command, overlapping)
        ends = [self._session_end(node, command) for node in to_terminate]
        if not overlapping and len(self.terminated) + len(to_terminate) <= self._chunk_size:
            self.terminated += ends
            self._decided.update((_node_ref(node), None) for node in to_terminate)
            return TerminateResult(command.zone_id, command.session_id, command.reason, len(to_terminate))
        self._mark(command, cascade_id, ends, overlapping)
        return TerminateResult(command.zone_id, command.session_id, command.reason, len(to_terminate), cascade_id)

    def _nodes(self, command: TerminateCommand) -> Sequence[TreeNode]:
        root_ids = (command.session_id, *(command.also_terminate if isinstance(command, Terminate) else ()))
        subtrees = [self._loaded.nodes.get((command.zone_id, root_id), ()) for root_id in root_ids]
        # One of the named sessions may be a descendant of another.
        return [*{node.id: node for subtree in subtrees for node in subtree}.values()] if subtrees[1:] else subtrees[0]

    def _overlapping_cascades(self, nodes: Iterable[TreeNode]) -> list[Cascade]:
        """Unfinished cascades that have marked some of these sessions, oldest first."""
        if not self._loaded.open_cascades and not self.marked:
            return []
        new_cascades = {(cascade.zone_id, cascade.id): cascade for cascade, _ in self.marked}
        cascade_ids = {node.cascade_id or self._decided.get(_node_ref(node)) for node in nodes}
        overlapping = [
            cascade for ref, cascade in {**self._loaded.open_cascades, **new_cascades}.items() if ref[1] in cascade_ids
        ]
        return sorted(overlapping, key=lambda cascade: (cascade.started_at, cascade.id))

    def _join(self, command: TerminateCommand, overlapping: Sequence[Cascade]) -> TerminateResult:
        """The result if all sessions are already terminated or marked. The command joins the last of the cascades."""
        if not overlapping:
            return TerminateResult(command.zone_id, command.session_id, command.reason, 0)
        last = overlapping[-1]
        return TerminateResult(command.zone_id, command.session_id, last.reason, 0, last.id, joined=True)

    def _session_end(self, node: TreeNode, command: TerminateCommand) -> SessionEnd:
        # An expired session ended at its expiry with the reason TTL_EXPIRED, whichever command terminates it.
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
        self._decided.update((_node_ref(end.node), cascade_id) for end in ends)


def _node_ref(node: TreeNode) -> Ref:
    return node.zone_id, node.id


def post_order(nodes: Sequence[TreeNode]) -> list[TreeNode]:
    """Sort trees whose nodes are listed parents first into termination order: each session after its descendants."""
    ids = {node.id for node in nodes}
    children: dict[str | None, list[TreeNode]] = {}
    roots = []
    for node in nodes:
        if node.parent_id in ids:
            children.setdefault(node.parent_id, []).append(node)
        else:
            roots.append(node)
    # The reverse of a pre-order that visits the last child first is a post-order. Without recursion, any depth works.
    reversed_order: dict[str, TreeNode] = {}
    _walk(roots, children, reversed_order)
    if len(reversed_order) < len(nodes):
        # A cycle, which exists only if someone edited the database by hand, has no root. It must be terminated too.
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
    """The sessions that are not terminated although their tree was, each with the reason."""
    return {
        node.id: "spawned since" if node.terminated_at is None else "marked; a sweep will terminate it"
        for node in nodes
        if node.status is not State.TERMINATED
    }
