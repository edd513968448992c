"""What changes fleets and their members: load under the zones' locks, decide by `rules.crew`, write in one commit.

A fleet is written in five steps: the fleet, its director, the director's placement, the reference back, and last the
administrator. A failure at any of them leaves nothing. Members are agents of the registry: they are registered there,
and terminated there, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentUpdate as AgentSaid, Register, RegisterResult, Terminate
from quarterdeck.domain.agents.operations.authorization import CallerChecks
from quarterdeck.domain.fleets.model.commands import CreateFleet, FleetCommand, FleetOutcome, Fleetwide, RegisterMember
from quarterdeck.domain.fleets.model.rows import Fleet, Member, MemberStatus, MonitorConfig, MonitorRuntime, Placement
from quarterdeck.domain.fleets.queries import LISTS, Q
from quarterdeck.domain.fleets.rules.agent_cards import BUILTIN, kind_of
from quarterdeck.domain.fleets.rules.members import Crew, Known, LastIds, Told, Wanted, key_of, wanted
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine import idempotency
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement, Statement

Batch = list[tuple[object, ...]]
K = TypeVar("K")
V = TypeVar("V", bound=msgspec.Struct)
LEFT_FLEET = "left_fleet"


async def change(tx: Transaction, asks: Sequence[FleetCommand]) -> list[FleetOutcome | Problem | Busy]:
    """Every verb, in order of arrival."""
    speakers = CallerChecks(asks)
    keys = [key for ask in asks if isinstance(ask, CreateFleet | RegisterMember) and (key := key_of(ask)) is not None]
    zone_ids: Batch = [(zone_id,) for zone_id in sorted({ask.zone_id for ask in asks})]
    locked_rows, *said, ids, bound = await tx.read(
        zones.lock_statement(tx, zones_of(asks)),
        *speakers.statements(),
        Q.fleet_ids(batch=zone_ids),
        idempotency.load_keys(keys),
    )
    locked = zones.decode_zones(locked_rows)
    why_not = await zones.lock_failures(tx, zones_of(asks) - locked.keys())
    bindings = idempotency.decode_records(bound)
    stored = await _stored(tx, _within(locked, wanted(asks, [*bindings.values()])))
    known = replace(
        stored,
        problem_of=speakers.build_state(said, tx.now).problem,
        zones=zone_rules.ended_zone_problems(locked.values()),
        last_ids={last.zone_id: last for last in decode(ids, LastIds)},
        keys=bindings,
    )
    crew = Crew(known)
    outcomes = [sessions.blocked(ask, why_not) or crew.decide(ask) for ask in asks]
    await _write(tx, known, crew)
    return outcomes


def _within(locked: Container[str], asked: Wanted) -> Wanted:
    """What is of zones that this transaction has to itself."""
    found = (asked.fleets, asked.members, asked.whole, asked.joined)
    return Wanted(*({ref for ref in refs if ref[0] in locked} for refs in found))


async def _stored(tx: Transaction, asked: Wanted) -> Known:
    """In one round trip, by as many statements as there is something to ask for."""
    refs, own = [*sorted(asked.fleets)], [*sorted(asked.members)]
    whole: Batch = [(*ref, MemberStatus.ACTIVE) for ref in sorted(asked.whole)]
    joined: Batch = [(*ref, MemberStatus.ACTIVE) for ref in sorted(asked.joined)]
    fleets, runtimes, counts, *found = await _read(
        tx,
        (Q.fleets_get, [*refs]),
        (Q.monitor_runtimes_get, [*refs]),
        (LISTS.fleets_counted, joined),
        (Q.members_get, [*own]),
        (Q.members_of_fleets, whole),
        (LISTS.placements_get, [*own]),
        (Q.placements_of_fleets, whole),
        (Q.monitor_configs_get, [*own]),
        (Q.monitor_configs_of_fleets, whole),
    )
    members, placements, configs = ([*found[at], *found[at + 1]] for at in (0, 2, 4))
    return Known(
        tx.now,
        _nobody,
        fleets={fleet.ref: fleet for fleet in decode(fleets, Fleet)},
        members={member.ref: member for member in decode(members, Member)},
        placements={placement.ref: placement for placement in decode(placements, Placement)},
        configs={(config.zone_id, config.agent_id): config for config in decode(configs, MonitorConfig)},
        runtimes={(each.zone_id, each.fleet_id): each for each in decode(runtimes, MonitorRuntime)},
        counts={(str(zone_id), int(str(fleet_id))): int(str(number)) for zone_id, fleet_id, number in counts},
    )


async def _read(tx: Transaction, *asked: tuple[Statement, Batch]) -> list[list[Row]]:
    """What each finds. Those with nothing to look for are not sent."""
    answers = iter(await tx.read(*(statement(batch=batch) for statement, batch in asked if batch)))
    return [next(answers) if batch else [] for _, batch in asked]


def _nobody(ask: Fleetwide, power: str) -> Problem | None:
    raise AssertionError("who may speak is known before anything is decided")


# -- writing -----------------------------------------------------------------------------------------------------


async def _write(tx: Transaction, known: Known, crew: Crew) -> None:
    """What refers to something comes after it; the administrators last of all."""
    if counted := _differing(known.last_ids, crew.last_ids):
        tx.write(Q.fleet_ids_set(batch=_rows(counted)))
    made = [fleet for ref, fleet in crew.fleets.items() if ref not in known.fleets]
    come = [member for ref, member in crew.members.items() if ref not in known.members]
    others = [member for member in come if kind_of(member.agent_card_json) != BUILTIN]
    _begin(tx, made, others, [each for ref, each in crew.placements.items() if ref not in known.placements])
    gone = await _leave(tx, known, crew)
    await _watch(tx, known, crew)
    if crew.keys.bindings:
        tx.write(idempotency.store_records(crew.keys.bindings, tx.now))
    await _register(tx, others)
    await _terminate(tx, [*gone, *(member for member in others if not member.is_active)])
    if administrators := [member for member in come if kind_of(member.agent_card_json) == BUILTIN]:
        tx.write(Q.members_insert(batch=_rows(administrators)))
    for told in crew.told:
        tx.emit(event(told))


def _begin(tx: Transaction, made: Sequence[Fleet], come: Sequence[Member], placed: Sequence[Placement]) -> None:
    """In the order in which they name each other."""
    if made:
        tx.write(
            Q.fleets_insert(
                batch=[(*each.ref, each.label, each.created_at, each.deleted_at, each.created_by) for each in made]
            )
        )
    if come:
        tx.write(Q.members_insert(batch=_rows(come)))
    if placed:
        tx.write(Q.placements_insert(batch=_rows(placed)))
    if made:
        tx.write(Q.fleets_direct(batch=[(*each.ref, each.director_agent_id) for each in made]))


async def _leave(tx: Transaction, known: Known, crew: Crew) -> list[Member]:
    """Those who were there and have left, and the fleets that were deleted."""
    gone = [
        (was, crew.members[ref])
        for ref, was in sorted(known.members.items())
        if crew.members[ref].status is not was.status
    ]
    if gone:
        leaving: Batch = [(*now.ref, was.status, now.status, now.deregistered_at) for was, now in gone]
        await _moved(tx, Q.members_leave(batch=leaving), len(leaving))
    deleted: Batch = [
        (*ref, crew.fleets[ref].deleted_at, 0)
        for ref, was in sorted(known.fleets.items())
        if was.deleted_at is None and crew.fleets[ref].deleted_at is not None
    ]
    if deleted:
        await _moved(tx, Q.fleets_delete(batch=deleted), len(deleted))
    return [now for _, now in gone]


async def _watch(tx: Transaction, known: Known, crew: Crew) -> None:
    """Panes that are there now, and those that are nobody's any more; how they are watched over, and by whom."""
    filled: Batch = [
        (*ref, placement.tmux_pane_id, "")
        for ref, placement in sorted(crew.placements.items())
        if ref in known.placements and known.placements[ref] != placement
    ]
    if filled:
        await _moved(tx, Q.placements_fill(batch=filled), len(filled))
    if removed := sorted(known.placements.keys() - crew.placements.keys()):
        tx.write(Q.placements_remove(batch=[*removed]))
    if configs := _differing(known.configs, crew.configs):
        tx.write(Q.monitor_configs_set(batch=_rows(configs)))
    if removed := sorted(known.configs.keys() - crew.configs.keys()):
        tx.write(Q.monitor_configs_remove(batch=[*removed]))
    if runtimes := _differing(known.runtimes, crew.runtimes):
        tx.write(Q.monitor_runtimes_set(batch=_rows(runtimes)))
    if removed := sorted(known.runtimes.keys() - crew.runtimes.keys()):
        tx.write(Q.monitor_runtimes_remove(batch=[*removed]))


async def _moved(tx: Transaction, statement: BoundStatement, number: int) -> None:
    [rows] = await tx.read(statement)
    if len(rows) != number:
        raise RuntimeError("fleets moved under the zone's lock")


# -- the registry ------------------------------------------------------------------------------------------------


async def _register(tx: Transaction, come: Sequence[Member]) -> None:
    """They are not missed there before they have spoken: a pane sends no heartbeats."""
    asked = [
        Register(
            zone_id=member.zone_id,
            agent_id=member.registry_id,
            update=AgentSaid(name=member.name, description=member.description),
            awaits_first_contact=True,
        )
        for member in come
        if member.registry_id is not None
    ]
    if not asked:
        return
    there_before = [ask for ask, made in zip(asked, await _registered(tx, asked), strict=True) if not made]
    if there_before:
        # Of before such ids were kept for members. Whoever speaks for that agent must not speak for the member.
        await agents.terminate_agents(tx, [_end(ask.zone_id, ask.agent_id) for ask in there_before])
        await _registered(tx, there_before)


async def _registered(tx: Transaction, asked: Sequence[Register]) -> list[bool]:
    """Whether each was new."""
    found: list[bool] = []
    for outcome in await agents.Registrar(()).register(tx, asked):
        if not isinstance(outcome, RegisterResult):
            raise outcome if isinstance(outcome, Problem) else RuntimeError("the zone is locked, and busy")
        found.append(outcome.created)
    return found


async def _terminate(tx: Transaction, gone: Sequence[Member]) -> None:
    """What they held is taken back by the room of tasks, which hears of it in this transaction."""
    ended = [_end(member.zone_id, member.registry_id) for member in gone if member.registry_id is not None]
    if ended:
        # An agent that somebody ended before, or that was forgotten since, is as gone as it is to be.
        await agents.terminate_agents(tx, ended)


def _end(zone_id: str, agent_id: str) -> Terminate:
    return Terminate(zone_id=zone_id, agent_id=agent_id, reason=LEFT_FLEET)


def _rows(each: Sequence[msgspec.Struct]) -> Batch:
    return [msgspec.structs.astuple(row) for row in each]


def _differing(before: Mapping[K, V], after: Mapping[K, V]) -> list[V]:
    return [each for key, each in after.items() if before.get(key) != each]


def event(told: Told) -> NewEvent:
    data = msgspec.json.encode({"fleetId": told.fleet_id}).decode()
    return NewEvent(told.type, told.zone_id, str(told.subject), told.actor, told.before, told.after, data, told.trace)
