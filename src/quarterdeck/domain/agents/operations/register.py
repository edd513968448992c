"""Registers agents: loads them under the zones' locks, decides with `rules.registration`, writes the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, new_record
from quarterdeck.core.ids import Ref
from quarterdeck.domain.agents.model import Agent, Register, RegisterResult, State
from quarterdeck.domain.agents.operations import persist
from quarterdeck.domain.agents.operations.load import LoadedAgents, load
from quarterdeck.domain.agents.queries import Q
from quarterdeck.domain.agents.rules import registration
from quarterdeck.domain.agents.rules.registration import RegistrationContext, registered_event_data
from quarterdeck.domain.agents.rules.states import AgentChange
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction

AGENT_COLUMN_COUNT = Agent.__struct_fields__.index("pulse_status")
"""`Agent` has this many fields from `agents`. The fields after them are from `agent_pulses`."""
RUN_OPERATION = "agent.begin"
"""The operation name in the idempotency key of a `runId`."""
_decode_capabilities = msgspec.json.Decoder(list[str]).decode


class Registrar:
    def __init__(self, launchers: Collection[str]) -> None:
        self._launchers = launchers

    async def register(self, tx: Transaction, commands: Sequence[Register]) -> list[RegisterResult | Problem | Busy]:
        """Create or change agents, in order of arrival."""
        loaded = await load(tx, commands)
        before = dict(loaded.agents)
        outcomes = [self._decide(tx, loaded, command) for command in commands]
        await _emit_restarts(tx, commands, outcomes, before)
        accepted_refs = {
            command.ref
            for command, outcome in zip(commands, outcomes, strict=True)
            if isinstance(outcome, RegisterResult)
        }
        await _persist(tx, {ref: (before.get(ref), loaded.agents[ref]) for ref in sorted(accepted_refs)})
        return outcomes

    def _decide(self, tx: Transaction, loaded: LoadedAgents, command: Register) -> RegisterResult | Problem | Busy:
        batch = loaded.batch
        if problem := batch.permission_problem(command, "agents.register") or batch.ended_zone_problem(command):
            return problem
        context = RegistrationContext(command.caller, batch.role(command), self._launchers)
        existing = loaded.agents.get(command.ref)
        outcome = registration.register(command, existing, context, tx.now)
        if isinstance(outcome, Problem):
            return outcome
        if isinstance(outcome, AgentChange):
            persist.emit_change(tx, outcome, command.actor, command.trace)
            loaded.agents[command.ref] = outcome.after
            return RegisterResult(outcome.after, outcome.before.status is State.TERMINATED, tx.now)
        tx.emit(_registered_event(outcome, command))
        loaded.agents[command.ref] = outcome
        return RegisterResult(outcome, True, tx.now)


async def _emit_restarts(
    tx: Transaction,
    commands: Sequence[Register],
    outcomes: Sequence[RegisterResult | Problem | Busy],
    before: Mapping[Ref, Agent],
) -> None:
    """Emit `agent.restarted` for agents with a new process. `domain.tasks` then retries the tasks of the old process.

    Each `runId` is stored, so that a repeated request does not emit the event again.
    """
    runs = {
        _run_key(command): command
        for command, outcome in zip(commands, outcomes, strict=True)
        if isinstance(outcome, RegisterResult) and command.run_id is not None
    }
    if not runs:
        return
    [rows] = await tx.read(idempotency.load_keys([*runs]))
    existing = idempotency.decode_records(rows)
    new_runs = {key: command for key, command in runs.items() if key not in existing}
    if new_runs:
        records = [new_record(key, "", command.agent_id) for key, command in new_runs.items()]
        tx.write(idempotency.store_records(records, tx.now))
    for command in new_runs.values():
        agent = before.get(command.ref)
        if agent is not None and registration.loses_held_tasks(agent):
            data = msgspec.json.encode({"heldTasks": agent.held}).decode()
            states = (agent.status, agent.status)
            tx.emit(NewEvent("agent.restarted", *command.ref, command.actor, *states, data, command.trace))


def _run_key(command: Register) -> Key:
    client_id = "" if command.caller is None else command.caller.client_id
    return Key(command.zone_id, client_id, RUN_OPERATION, f"{command.agent_id} {command.run_id}")


def _registered_event(agent: Agent, command: Register) -> NewEvent:
    data = msgspec.json.encode(dict(registered_event_data(agent))).decode()
    return NewEvent("agent.registered", *agent.ref, command.actor, None, agent.status, data, command.trace)


async def _persist(tx: Transaction, changes: dict[Ref, tuple[Agent | None, Agent]]) -> None:
    created = [after for before, after in changes.values() if before is None]
    updated = [(before, after) for before, after in changes.values() if before is not None]
    if created:
        tx.write(Q.agents_insert(batch=[msgspec.structs.astuple(agent)[:AGENT_COLUMN_COUNT] for agent in created]))
        tx.write(
            Q.agent_pulses_insert(batch=[(*agent.ref, agent.pulse_status, agent.last_seen_at) for agent in created])
        )
    persist.write_pulses(tx, [after for _, after in updated])
    _write_capabilities(tx, changes)
    if updated:
        [rows] = await tx.read(Q.agents_update(batch=[_update_row(*pair) for pair in updated]))
        if len(rows) != len(updated):
            raise RuntimeError("agents were changed by another transaction despite the zone's lock")


def _write_capabilities(tx: Transaction, changes: dict[Ref, tuple[Agent | None, Agent]]) -> None:
    removed_rows: list[tuple[str, str, str]] = []
    added_rows: list[tuple[str, str, str]] = []
    for (zone_id, agent_id), (before, after) in changes.items():
        old = set(_decode_capabilities(before.capabilities)) if before else set()
        new = set(_decode_capabilities(after.capabilities))
        removed_rows += [(zone_id, capability, agent_id) for capability in sorted(old - new)]
        added_rows += [(zone_id, capability, agent_id) for capability in sorted(new - old)]
    if removed_rows:
        tx.write(Q.agent_capabilities_delete(batch=removed_rows))
    if added_rows:
        tx.write(Q.agent_capabilities_insert(batch=added_rows))


def _update_row(before: Agent, after: Agent) -> tuple[Any, ...]:
    columns = msgspec.structs.astuple(after)[2:AGENT_COLUMN_COUNT]
    return (*after.ref, before.status, *columns)
