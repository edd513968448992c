"""Suspension: a flag on one session suspends it and its descendants.

A session is suspended while it or an ancestor has the flag. If a session and its ancestor both have the flag, resuming
the ancestor leaves the session suspended, regardless of the order in which the flags were set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem, StateConflict
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access.rules import is_live
from quarterdeck.domain.sessions.model import State, Suspend, TreeNode, Verb
from quarterdeck.domain.sessions.rules.states import SESSION_STATES


class SuspensionChange(msgspec.Struct, frozen=True):
    """A session before and after a command. The command's target has one even if only its flag changed."""

    before: TreeNode
    after: TreeNode


class SessionTrees:
    """The named sessions of a batch with their subtrees and ancestors. Each command sees earlier changes."""

    def __init__(self, nodes: Iterable[TreeNode], now: Millis) -> None:
        self._now = now
        self._nodes: dict[Ref, TreeNode] = {(node.zone_id, node.id): node for node in nodes}
        self._children: dict[Ref, list[Ref]] = {}
        for ref, node in self._nodes.items():
            if node.parent_id is not None:
                self._children.setdefault((node.zone_id, node.parent_id), []).append(ref)

    def decide(self, command: Suspend) -> list[SuspensionChange] | Problem:
        return self._suspend(command) if command.verb is Verb.SUSPEND else self._resume(command)

    def _suspend(self, command: Suspend) -> list[SuspensionChange] | Problem:
        target = self._live_target(command)
        if target is None:
            return StateConflict(
                "agent_not_found_or_not_active", f"Session {command.session_id!r} has ended and cannot be suspended."
            )
        subtree = [target, *self._live_descendants(target)]
        return self._apply(target, 1, [node for node in subtree if node.status is State.ACTIVE], Verb.SUSPEND)

    def _resume(self, command: Suspend) -> list[SuspensionChange] | Problem:
        target = self._live_target(command)
        if target is None or not target.held:
            ancestor = self.suspended_ancestor(target) if target else None
            return not_suspended(command.session_id, target, ancestor)
        if self.suspended_ancestor(target) is not None:
            return self._apply(target, 0, [], Verb.RESUME)
        subtree = [target, *self._live_descendants(target, skip_flagged=True)]
        return self._apply(target, 0, [node for node in subtree if node.status is State.SUSPENDED], Verb.RESUME)

    def suspended_ancestor(self, node: TreeNode) -> TreeNode | None:
        """The nearest ancestor with the flag."""
        return next((ancestor for ancestor in self._ancestors(node) if ancestor.held), None)

    def _live_target(self, command: Suspend) -> TreeNode | None:
        node = self._nodes.get((command.zone_id, command.session_id))
        return node if node is not None and is_live(node, self._now) else None

    def _ancestors(self, node: TreeNode) -> Iterator[TreeNode]:
        # There is a cycle only if someone edited the database by hand. It must not hang the server.
        visited: set[Ref] = {(node.zone_id, node.id)}
        while node.parent_id is not None and (ref := (node.zone_id, node.parent_id)) not in visited:
            visited.add(ref)
            parent = self._nodes.get(ref)
            if parent is None:
                return
            yield parent
            node = parent

    def _live_descendants(self, top: TreeNode, *, skip_flagged: bool = False) -> Iterator[TreeNode]:
        """Live descendants, parents first. `skip_flagged` leaves out sessions with the flag and their subtrees."""
        visited: set[Ref] = {(top.zone_id, top.id)}
        pending = deque(self._children.get((top.zone_id, top.id), ()))
        while pending:
            node = self._nodes[ref := pending.popleft()]
            if ref in visited or not is_live(node, self._now) or (node.held and skip_flagged):
                continue
            visited.add(ref)
            yield node
            pending += self._children.get(ref, ())

    def _apply(self, target: TreeNode, flag: int, affected: Sequence[TreeNode], verb: Verb) -> list[SuspensionChange]:
        flagged = msgspec.structs.replace(target, held=flag)
        changes = {target.id: SuspensionChange(target, flagged)}
        for node in affected:
            status = SESSION_STATES.next_state(verb, node.status)
            assert status is not None  # `affected` has only sessions in a state that the verb allows
            after = msgspec.structs.replace(flagged if node.id == target.id else node, status=status)
            changes[node.id] = SuspensionChange(node, after)
        self._nodes.update(((change.after.zone_id, change.after.id), change.after) for change in changes.values())
        return list(changes.values())


def not_suspended(session_id: str, target: TreeNode | None, ancestor: TreeNode | None) -> StateConflict:
    detail = f"Session {session_id!r} is not suspended."
    extra: dict[str, object] = {}
    if target is None:
        detail = f"Session {session_id!r} has ended and cannot be resumed."
    elif ancestor is not None:
        detail = f"Session {session_id!r} is suspended by its ancestor {ancestor.id!r}. Resume that session."
        extra = {"held_by": ancestor.id, "frees": f"resume {ancestor.id}"}
    return StateConflict("agent_not_found_or_not_suspended", detail, **extra)
