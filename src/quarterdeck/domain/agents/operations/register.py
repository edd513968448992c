"""Registering: load under the zones' locks, decide by `rules.registering`, write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, bound
from quarterdeck.domain.agents import rules
from quarterdeck.domain.agents.model import Agent, Ref, Register, Registered, State
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import Batch, Loaded, load
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import Moved, Speaker
from quarterdeck.domain.agents.rules.registration import registered_data
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx

OWN = Agent.__struct_fields__.index("pulse_status")
"""So many columns are of `agents`; the rest is of its pulse."""
BEGINNING = "agent.begin"
"""What the processes that work as agents are kept under."""
_names = msgspec.json.Decoder(list[str]).decode


class Registrar:
    """An object only because it must know which launchers the server's configuration names."""

    def __init__(self, launchers: Collection[str]) -> None:
        self._launchers = launchers

    async def register(self, tx: Tx, asks: Sequence[Register]) -> list[Registered | Problem | Busy]:
        """Registers agents, or changes what is said of them, in order of arrival."""
        loaded = await load(tx, asks)
        before = dict(loaded.agents)
        outcomes = [self._decide(tx, loaded, ask) for ask in asks]
        await _begin(tx, asks, outcomes, before)
        touched = {ask.ref for ask, o in zip(asks, outcomes, strict=True) if isinstance(o, Registered)}
        await _write(tx, {ref: (before.get(ref), loaded.agents[ref]) for ref in sorted(touched)})
        return outcomes

    def _decide(self, tx: Tx, loaded: Loaded, ask: Register) -> Registered | Problem | Busy:
        if refusal := loaded.refusal(ask, "agents.register") or loaded.endings[ask.zone_id]:
            return refusal
        by = Speaker(ask.caller, loaded.role(ask), self._launchers)
        known = loaded.agents.get(ask.ref)
        outcome = rules.register(ask, known, by, tx.now)
        if isinstance(outcome, Problem):
            return outcome
        if isinstance(outcome, Moved):
            persist.tell(tx, outcome, ask.actor, ask.trace)
            loaded.agents[ask.ref] = outcome.after
            return Registered(outcome.after, outcome.before.status is State.TERMINATED, tx.now)
        tx.emit(_made(outcome, ask))
        loaded.agents[ask.ref] = outcome
        return Registered(outcome, True, tx.now)


async def _begin(
    tx: Tx, asks: Sequence[Register], outcomes: Sequence[Registered | Problem | Busy], before: Mapping[Ref, Agent]
) -> None:
    """Where another process works as an agent than before, tells so: the room of tasks takes back what that one held.
    Once for each process: the same request, should it come late once more, takes nothing from it."""
    said = {
        _run_of(ask): ask
        for ask, outcome in zip(asks, outcomes, strict=True)
        if isinstance(outcome, Registered) and ask.run_id is not None
    }
    if not said:
        return
    [rows] = await tx.read(idempotency.load([*said]))
    known = idempotency.loaded(rows)
    new = {key: ask for key, ask in said.items() if key not in known}
    if new:
        tx.write(idempotency.store([bound(key, "", ask.agent_id) for key, ask in new.items()], tx.now))
    for ask in new.values():
        agent = before.get(ask.ref)
        if agent is not None and rules.loses_all(agent):
            data = msgspec.json.encode({"heldTasks": agent.held}).decode()
            states = (agent.status, agent.status)
            tx.emit(NewEvent("agent.restarted", *ask.ref, ask.actor, *states, data, ask.trace))


def _run_of(ask: Register) -> Key:
    who = "" if ask.caller is None else ask.caller.client_id
    return Key(ask.zone_id, who, BEGINNING, f"{ask.agent_id} {ask.run_id}")


def _made(agent: Agent, ask: Register) -> NewEvent:
    data = msgspec.json.encode(dict(registered_data(agent))).decode()
    return NewEvent("agent.registered", *agent.ref, ask.actor, None, agent.status, data, ask.trace)


async def _write(tx: Tx, moves: dict[Ref, tuple[Agent | None, Agent]]) -> None:
    made = [after for before, after in moves.values() if before is None]
    known = [(before, after) for before, after in moves.values() if before is not None]
    if made:
        tx.write(Q.agents_insert(batch=[msgspec.structs.astuple(agent)[:OWN] for agent in made]))
        tx.write(Q.agent_pulses_insert(batch=[(*agent.ref, agent.pulse_status, agent.last_seen_at) for agent in made]))
    persist.pulses(tx, [after for _, after in known])
    _say_capabilities(tx, moves)
    if known:
        [rows] = await tx.read(Q.agents_update(batch=[_updated(*pair) for pair in known]))
        if len(rows) != len(known):
            raise RuntimeError("agents moved under the zone's lock")


def _say_capabilities(tx: Tx, moves: dict[Ref, tuple[Agent | None, Agent]]) -> None:
    gone: Batch = []
    come: Batch = []
    for (zone_id, agent_id), (before, after) in moves.items():
        had = set(_names(before.capabilities)) if before else set()
        has = set(_names(after.capabilities))
        gone += [(zone_id, name, agent_id) for name in sorted(had - has)]
        come += [(zone_id, name, agent_id) for name in sorted(has - had)]
    if gone:
        tx.write(Q.agent_capabilities_remove(batch=gone))
    if come:
        tx.write(Q.agent_capabilities_insert(batch=come))


def _updated(before: Agent, after: Agent) -> tuple[object, ...]:
    said = msgspec.structs.astuple(after)[2:OWN]
    return (*after.ref, before.status, *said)
