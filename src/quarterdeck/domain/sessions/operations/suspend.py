"""Sets and clears suspend flags, and updates the states that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.sessions.model import State, Suspend, SuspendResult, TreeNode
from quarterdeck.domain.sessions.operations.reads import decode_sessions
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import states
from quarterdeck.domain.sessions.rules.suspension import SessionTrees, SuspensionChange
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import chunks


async def suspend_or_resume(tx: Transaction, commands: Sequence[Suspend]) -> list[SuspendResult | Problem | Busy]:
    """Suspend and resume sessions, in order of arrival."""
    refs = sorted({(command.zone_id, command.session_id) for command in commands})
    batch, [subtree_rows, lineage_rows, session_rows] = await access.lock(
        tx,
        commands,
        Q.session_nodes_of_subtrees(batch=refs),
        Q.session_nodes_of_lineages(batch=refs),
        Q.sessions_get(batch=refs),
    )
    sessions = decode_sessions(session_rows)
    trees = SessionTrees(decode([*(row[1:] for row in subtree_rows), *lineage_rows], TreeNode), tx.now)
    changes = _BatchChanges()
    outcomes: list[SuspendResult | Problem | Busy] = []
    for command in commands:
        problem = batch.problem(command)
        target = sessions.get((command.zone_id, command.session_id))
        if problem is None and target is None:
            problem = states.session_not_found(command.session_id)
        if problem is None and target and not command.caller.can_act_for(target.application_id, "spawn_for"):
            problem = states.ownership_required(target.application_id)
        outcomes.append(problem or changes.apply(tx, command, trees.decide(command)))
    await changes.persist(tx)
    return outcomes


class _BatchChanges:
    """The changed sessions of a batch, each with its state before and after the batch."""

    def __init__(self) -> None:
        self._changes: dict[Ref, SuspensionChange] = {}
        self._newly_suspended: set[Ref] = set()
        """Sessions that this batch suspends, even if it resumes them first: they get a new `suspended_at`."""

    def apply(
        self, tx: Transaction, command: Suspend, decision: list[SuspensionChange] | Problem
    ) -> SuspendResult | Problem:
        if isinstance(decision, Problem):
            return decision
        for change in decision:
            ref = (change.before.zone_id, change.before.id)
            first = self._changes.get(ref, change)
            self._changes[ref] = SuspensionChange(first.before, change.after)
            if change.before.status is not change.after.status is State.SUSPENDED:
                self._newly_suspended.add(ref)
            tx.emit(_suspension_event(command, change))
        return SuspendResult(sum(change.before.status is not change.after.status for change in decision))

    async def persist(self, tx: Transaction) -> None:
        batch = [
            (*ref, change.before.status, change.after.status, change.after.held, int(ref in self._newly_suspended))
            for ref, change in sorted(self._changes.items())
        ]
        for piece in chunks(batch):
            [rows] = await tx.read(Q.sessions_set_suspended(batch=piece, now=tx.now))
            if len(rows) != len(piece):
                raise RuntimeError("sessions were changed by another transaction despite the zone's lock")


def _suspension_event(command: Suspend, change: SuspensionChange) -> NewEvent:
    node = change.after
    data = msgspec.json.encode(
        {"cause": command.session_id, "session_sid": node.session_sid, "root_id": node.root_id}
    ).decode()
    return NewEvent(
        f"session.{command.verb}",
        node.zone_id,
        node.id,
        command.caller.subject,
        change.before.status,
        node.status,
        data,
        command.trace,
    )
