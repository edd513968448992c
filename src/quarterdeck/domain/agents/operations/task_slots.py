"""What agents hold, counted for the room of tasks, and who of them has spoken: in its transaction, and under the zone's
lock that it has taken."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from quarterdeck.core.command import Command
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Ref
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import Batch, decode_agents
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.sql import chunks


async def adjust_held(tx: Transaction, deltas: Mapping[Ref, int], seen: Collection[Ref] = ()) -> None:
    """Adds to what agents hold, never below nothing. Who `spoke` is heard of by that; nobody is by what was given to
    them, or taken from them. One that was to end with its last task ends."""
    batch: Batch = [(*ref, deltas.get(ref, 0), int(ref in seen)) for ref in sorted({*deltas, *seen})]
    ended: list[Ref] = []
    for piece in chunks(batch):
        tx.write(Q.agent_pulses_lock(batch=[row[:2] for row in piece]))
        statement = Q.agents_adjust_held(batch=piece, now=tx.now)
        if all(delta >= 0 for delta in deltas.values()):
            # Whoever drains takes nothing, so there is nobody whose last task this could be, and nothing to wait for.
            tx.write(statement)
            continue
        [rows] = await tx.read(statement)
        ended += [(str(zone_id), str(agent_id)) for zone_id, agent_id, held, draining in rows if draining and not held]
    if ended:
        await _terminate_drained(tx, sorted(ended))


async def revive(tx: Transaction, commands: Mapping[Ref, Command]) -> None:
    """Those that were believed to be lost, or had never been heard of, and have spoken, each by which word; that they
    were heard of stands in what is heard of them already. What was taken from them stays taken; and from now on
    somebody looks whether they are there."""
    [rows] = await tx.read(Q.agents_get(batch=[*sorted(commands)]))
    changes = {ref: rules.evaluate_liveness(agent, tx.now) for ref, agent in decode_agents(rows).items()}
    await persist.update_agents(tx, {ref: (change.before, change.after) for ref, change in changes.items()})
    for ref, change in changes.items():
        persist.emit_change(tx, change, commands[ref].actor, commands[ref].trace)


async def _terminate_drained(tx: Transaction, refs: list[Ref]) -> None:
    """They have given back the last they held."""
    [rows] = await tx.read(Q.agents_get(batch=[*refs]))
    changes = {
        ref: rules.terminate(agent, agent.status_reason, tx.now, graceful=True)
        for ref, agent in decode_agents(rows).items()
    }
    await persist.update_agents(tx, {ref: (change.before, change.after) for ref, change in changes.items()})
    for change in changes.values():
        persist.emit_change(tx, change, "server")
