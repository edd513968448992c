"""The operation of the `fleet` lane: load under the zones' locks, decide with `rules.members`, persist.

A fleet is written in five steps: the fleet, its director, the director's placement, the fleet's reference to the
director, and last the administrator. A failure in any step rolls back all of them. Members, except administrators, are
registered agents: the same transaction registers or terminates them in the agent registry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import msgspec

from quarterdeck.core.command import R
from quarterdeck.core.errors import Problem
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentUpdate, Register, Terminate
from quarterdeck.domain.fleets.model.commands import (
    BaseFleetCommand,
    CreateFleet,
    FleetCommand,
    FleetOutcome,
    RegisterMember,
)
from quarterdeck.domain.fleets.model.rows import Fleet, Member, MemberStatus, MonitorConfig, MonitorRuntime, Placement
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules.agent_cards import ADMINISTRATOR_KIND, member_kind
from quarterdeck.domain.fleets.rules.members import (
    FleetBatch,
    FleetBatchInput,
    FleetBatchRefs,
    LastIds,
    PendingEvent,
    collect_refs,
    command_key,
)
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, require_result
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

K = TypeVar("K")
V = TypeVar("V", bound=msgspec.Struct)
CHANGE_PERMISSION = "fleets.change"
LEFT_FLEET_REASON = "left_fleet"


class SubmitFleetCommand(Protocol):
    def __call__(self, command: BaseFleetCommand[R], /) -> Awaitable[R]: ...


async def change_fleets(tx: Transaction, commands: Sequence[FleetCommand]) -> list[FleetOutcome | Problem | Busy]:
    keys = [
        key
        for command in commands
        if isinstance(command, CreateFleet | RegisterMember) and (key := command_key(command)) is not None
    ]
    zone_ids = [(zone_id,) for zone_id in sorted({command.zone_id for command in commands})]
    locked, [last_id_rows, key_rows] = await access.lock_with_roles(
        tx, commands, Q.fleet_counters_get(batch=zone_ids), idempotency.load_keys(keys)
    )
    key_records = idempotency.decode_records(key_rows)
    loaded_rows = await _load(tx, _restrict_to_zones(locked.zones, collect_refs(commands, [*key_records.values()])))
    loaded = replace(
        loaded_rows,
        zone_problems=zone_rules.ended_zone_problems(locked.zones.values()),
        last_ids={last.zone_id: last for last in decode(last_id_rows, LastIds)},
        key_records=key_records,
    )
    batch = FleetBatch(loaded)
    outcomes = [locked.permission_problem(command, CHANGE_PERMISSION) or batch.decide(command) for command in commands]
    await _persist(tx, loaded, batch)
    return outcomes


def _restrict_to_zones(locked_zones: Container[str], refs: FleetBatchRefs) -> FleetBatchRefs:
    """The refs in zones that this transaction has locked."""
    ref_sets = (refs.fleets, refs.members, refs.complete_fleets, refs.counted_fleets)
    return FleetBatchRefs(*({ref for ref in ref_set if ref[0] in locked_zones} for ref_set in ref_sets))


async def _load(tx: Transaction, batch_refs: FleetBatchRefs) -> FleetBatchInput:
    """Load the rows in one round trip. Statements with an empty batch are not sent."""
    fleet_refs, member_refs = sorted(batch_refs.fleets), sorted(batch_refs.members)
    complete_keys = [(*ref, MemberStatus.ACTIVE) for ref in sorted(batch_refs.complete_fleets)]
    counted_keys = [(*ref, MemberStatus.ACTIVE) for ref in sorted(batch_refs.counted_fleets)]
    fleet_rows, runtime_rows, count_rows, *row_sets = await tx.read_some(
        Q.fleets_get(batch=fleet_refs) if fleet_refs else None,
        Q.monitor_runtimes_get(batch=fleet_refs) if fleet_refs else None,
        LISTS.fleets_count_members(batch=counted_keys) if counted_keys else None,
        Q.members_get(batch=member_refs) if member_refs else None,
        Q.members_of_fleets(batch=complete_keys) if complete_keys else None,
        LISTS.placements_get(batch=member_refs) if member_refs else None,
        Q.placements_of_fleets(batch=complete_keys) if complete_keys else None,
        Q.monitor_configs_get(batch=member_refs) if member_refs else None,
        Q.monitor_configs_of_fleets(batch=complete_keys) if complete_keys else None,
    )
    member_rows, placement_rows, config_rows = ([*row_sets[index], *row_sets[index + 1]] for index in (0, 2, 4))
    return FleetBatchInput(
        tx.now,
        fleets={fleet.ref: fleet for fleet in decode(fleet_rows, Fleet)},
        members={member.ref: member for member in decode(member_rows, Member)},
        placements={placement.ref: placement for placement in decode(placement_rows, Placement)},
        configs={(config.zone_id, config.agent_id): config for config in decode(config_rows, MonitorConfig)},
        runtimes={(runtime.zone_id, runtime.fleet_id): runtime for runtime in decode(runtime_rows, MonitorRuntime)},
        active_counts={(str(zone_id), int(str(fleet_id))): int(str(count)) for zone_id, fleet_id, count in count_rows},
    )


# -- persisting --------------------------------------------------------------------------------------------------


async def _persist(tx: Transaction, loaded: FleetBatchInput, batch: FleetBatch) -> None:
    """Write rows after the rows they reference; administrators last."""
    if last_ids := _changed_values(loaded.last_ids, batch.last_ids):
        tx.write(Q.fleet_counters_set(batch=_to_rows(last_ids)))
    new_fleets = [fleet for ref, fleet in batch.fleets.items() if ref not in loaded.fleets]
    new_members = [member for ref, member in batch.members.items() if ref not in loaded.members]
    agent_members = [member for member in new_members if member_kind(member.agent_card_json) != ADMINISTRATOR_KIND]
    _insert_new(
        tx,
        new_fleets,
        agent_members,
        [placement for ref, placement in batch.placements.items() if ref not in loaded.placements],
    )
    removed = await _persist_removals(tx, loaded, batch)
    await _persist_panes_and_monitors(tx, loaded, batch)
    if batch.keys.new_records:
        tx.write(idempotency.store_records(batch.keys.new_records, tx.now))
    await _register_agents(tx, agent_members)
    await _terminate_agents(tx, [*removed, *(member for member in agent_members if not member.is_active)])
    if administrators := [
        member for member in new_members if member_kind(member.agent_card_json) == ADMINISTRATOR_KIND
    ]:
        tx.write(Q.members_insert(batch=_to_rows(administrators)))
    for pending in batch.events:
        tx.emit(to_new_event(pending))


def _insert_new(
    tx: Transaction, fleets: Sequence[Fleet], members: Sequence[Member], placements: Sequence[Placement]
) -> None:
    """Insert rows in the order of their foreign keys."""
    if fleets:
        tx.write(
            Q.fleets_insert(
                batch=[
                    (*fleet.ref, fleet.label, fleet.created_at, fleet.deleted_at, fleet.created_by) for fleet in fleets
                ]
            )
        )
    if members:
        tx.write(Q.members_insert(batch=_to_rows(members)))
    if placements:
        tx.write(Q.placements_insert(batch=_to_rows(placements)))
    if fleets:
        tx.write(Q.fleets_set_director(batch=[(*fleet.ref, fleet.director_agent_id) for fleet in fleets]))


async def _persist_removals(tx: Transaction, loaded: FleetBatchInput, batch: FleetBatch) -> list[Member]:
    """Deregister members and mark fleets as deleted. Returns the deregistered members."""
    removed = [
        (before, batch.members[ref])
        for ref, before in sorted(loaded.members.items())
        if batch.members[ref].status is not before.status
    ]
    if removed:
        removed_rows = [(*after.ref, before.status, after.status, after.deregistered_at) for before, after in removed]
        await _update_checked(tx, Q.members_deregister(batch=removed_rows), len(removed_rows))
    deleted_rows = [
        (*ref, batch.fleets[ref].deleted_at, 0)
        for ref, before in sorted(loaded.fleets.items())
        if before.deleted_at is None and batch.fleets[ref].deleted_at is not None
    ]
    if deleted_rows:
        await _update_checked(tx, Q.fleets_delete(batch=deleted_rows), len(deleted_rows))
    return [after for _, after in removed]


async def _persist_panes_and_monitors(tx: Transaction, loaded: FleetBatchInput, batch: FleetBatch) -> None:
    """Write and delete placements, monitor configurations and monitor rows."""
    pane_rows = [
        (*ref, placement.tmux_pane_id, "")
        for ref, placement in sorted(batch.placements.items())
        if ref in loaded.placements and loaded.placements[ref] != placement
    ]
    if pane_rows:
        await _update_checked(tx, Q.placements_set_pane(batch=pane_rows), len(pane_rows))
    if removed := sorted(loaded.placements.keys() - batch.placements.keys()):
        tx.write(Q.placements_delete(batch=[*removed]))
    if configs := _changed_values(loaded.configs, batch.configs):
        tx.write(Q.monitor_configs_set(batch=_to_rows(configs)))
    if removed := sorted(loaded.configs.keys() - batch.configs.keys()):
        tx.write(Q.monitor_configs_delete(batch=[*removed]))
    if runtimes := _changed_values(loaded.runtimes, batch.runtimes):
        tx.write(Q.monitor_runtimes_set(batch=_to_rows(runtimes)))
    if removed := sorted(loaded.runtimes.keys() - batch.runtimes.keys()):
        tx.write(Q.monitor_runtimes_delete(batch=[*removed]))


async def _update_checked(tx: Transaction, statement: BoundStatement, expected_count: int) -> None:
    [rows] = await tx.read(statement)
    if len(rows) != expected_count:
        raise RuntimeError("fleet rows were changed by another transaction despite the zone's lock")


# -- the registry ------------------------------------------------------------------------------------------------


async def _register_agents(tx: Transaction, members: Sequence[Member]) -> None:
    """Register the members as agents that do not become stale before their first request: panes send no heartbeats."""
    commands = [
        Register(
            zone_id=member.zone_id,
            agent_id=member.registry_id,
            update=AgentUpdate(name=member.name, description=member.description),
            awaits_first_contact=True,
        )
        for member in members
        if member.registry_id is not None
    ]
    if not commands:
        return
    existing = [
        command for command, is_new in zip(commands, await _run_registrations(tx, commands), strict=True) if not is_new
    ]
    if existing:
        # These agents were registered before the registry reserved ids of this form for members. Their tokens must
        # not act for the new members.
        await agents.terminate_agents(
            tx, [_terminate_command(command.zone_id, command.agent_id) for command in existing]
        )
        await _run_registrations(tx, existing)


async def _run_registrations(tx: Transaction, commands: Sequence[Register]) -> list[bool]:
    """Returns for each command whether the agent is new."""
    return [require_result(outcome).created for outcome in await agents.Registrar(()).register(tx, commands)]


async def _terminate_agents(tx: Transaction, members: Sequence[Member]) -> None:
    """Terminate the registered agents. The task listener releases their attempts in the same transaction."""
    commands = [
        _terminate_command(member.zone_id, member.registry_id) for member in members if member.registry_id is not None
    ]
    if commands:
        # The outcome is ignored: an agent that was already terminated or deleted needs no change.
        await agents.terminate_agents(tx, commands)


def _terminate_command(zone_id: str, agent_id: str) -> Terminate:
    return Terminate(zone_id=zone_id, agent_id=agent_id, reason=LEFT_FLEET_REASON)


def _to_rows(structs: Sequence[msgspec.Struct]) -> list[tuple[Any, ...]]:
    return [msgspec.structs.astuple(struct) for struct in structs]


def _changed_values(before: Mapping[K, V], after: Mapping[K, V]) -> list[V]:
    return [value for key, value in after.items() if before.get(key) != value]


def to_new_event(pending: PendingEvent) -> NewEvent:
    data = msgspec.json.encode({"fleetId": pending.fleet_id}).decode()
    return NewEvent(
        pending.type,
        pending.zone_id,
        str(pending.subject_id),
        pending.actor,
        pending.before,
        pending.after,
        data,
        pending.trace,
    )
