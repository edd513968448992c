"""Counts held tasks, and marks agents as seen or revives them, for `domain.tasks`.

Runs in the transaction of a batch of task commands, which has locked the zone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quarterdeck.core.command import SERVER_ACTOR, Command
from quarterdeck.core.ids import Ref
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import decode_agents
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import states
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.sql import chunks


async def adjust_held(tx: Transaction, deltas: Mapping[Ref, int], seen: Collection[Ref] = ()) -> None:
    """Add `deltas` to the numbers of held tasks, never below 0, and terminate draining agents that then hold none.

    Agents in `seen` sent a command themselves. Other agents are marked as seen only if they had no task and get one.
    """
    batch = [(*ref, deltas.get(ref, 0), int(ref in seen)) for ref in sorted({*deltas, *seen})]
    drained_refs: list[Ref] = []
    for piece in chunks(batch):
        tx.write(Q.agent_pulses_lock(batch=[row[:2] for row in piece]))
        statement = Q.agents_adjust_held(batch=piece, now=tx.now)
        if all(delta >= 0 for delta in deltas.values()):
            # No agent loses a task, so none can become drained, and the result is not needed.
            tx.write(statement)
            continue
        [rows] = await tx.read(statement)
        drained_refs += [
            (str(zone_id), str(agent_id)) for zone_id, agent_id, held, draining in rows if draining and not held
        ]
    if drained_refs:
        await _terminate_drained(tx, sorted(drained_refs))


async def revive(tx: Transaction, commands: Mapping[Ref, Command]) -> None:
    """Update the status of agents that were stale or awaited their first contact and have sent a command.

    The transaction has already written their `last_seen_at`. Liveness checks of these agents start again. Their
    aborted attempts are not restored.
    """
    [rows] = await tx.read(Q.agents_get(batch=sorted(commands)))
    changes = {ref: states.evaluate_liveness(agent, tx.now) for ref, agent in decode_agents(rows).items()}
    await persist.update_agents(tx, {ref: (change.before, change.after) for ref, change in changes.items()})
    for ref, change in changes.items():
        persist.emit_change(tx, change, commands[ref].actor, commands[ref].trace)


async def _terminate_drained(tx: Transaction, refs: list[Ref]) -> None:
    [rows] = await tx.read(Q.agents_get(batch=[*refs]))
    changes = {
        ref: states.terminate(agent, agent.status_reason, tx.now, graceful=True)
        for ref, agent in decode_agents(rows).items()
    }
    await persist.update_agents(tx, {ref: (change.before, change.after) for ref, change in changes.items()})
    for change in changes.values():
        persist.emit_change(tx, change, SERVER_ACTOR)
