"""What a batch needs to be decided: one round trip under the zones' locks, and a second for what claims may get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import SECOND
from quarterdeck.core.idempotency import Binding, Key
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.agents.operations.authorization import Speakers
from quarterdeck.domain.tasks.model.commands import (
    Assign,
    Claim,
    Command,
    Complete,
    Create,
    Named,
    Patch,
    Progress,
    Retry,
    Spread,
)
from quarterdeck.domain.tasks.model.rows import AgentRef, Ref, State, Strategy, Task
from quarterdeck.domain.tasks.operations import costs
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, Kind, Known, Standing, Windows, Worker
from quarterdeck.domain.tasks.rules.idempotency import key_of, key_of_claim
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine import idempotency, leases
from quarterdeck.engine.lanes import zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound

Batch = list[tuple[object, ...]]
BLOCKED_MAX = 1_000
"""Those that wait for what ends in a batch, which that batch settles."""
AHEAD_MAX = 100_000
"""Dependencies that are walked to find a cycle."""
_names = msgspec.json.Decoder(list[str]).decode


@dataclass(frozen=True, slots=True)
class Loaded:
    known: Known
    locked: set[str]
    """Zones. Of those that were busy nothing is known: whoever holds the lock may be moving the same now."""
    terms: set[tuple[str, int]]
    """Of leases that are asked under, those that are not over."""


class Trip:
    """Statements that are read together, and each one's answer."""

    def __init__(self) -> None:
        self._statements: list[Bound] = []
        self._answers: list[list[Row]] = []

    def ask(self, statement: Bound, wanted: object = True) -> int | None:
        """Where its answer will stand; nothing is asked if nothing is wanted."""
        if not wanted:
            return None
        self._statements.append(statement)
        return len(self._statements) - 1

    async def go(self, tx: Tx) -> None:
        self._answers = await tx.read(*self._statements)

    def rows(self, place: int | None) -> list[Row]:
        return [] if place is None else self._answers[place]


async def load(tx: Tx, asks: Sequence[Command], waiting: Sequence[Claim], windows: Windows) -> Loaded:
    """Everything that is asked for, and those who wait and may be handed something."""
    wanted = _Wanted(asks, waiting)
    trip = Trip()
    fenced = trip.ask(leases.fences(sorted(wanted.terms)), wanted.terms)
    zone_rows = trip.ask(zones.lock(tx, wanted.zones))
    speakers = Speakers([*asks, *waiting])
    spoken = [trip.ask(statement) for statement in speakers.statements()]
    budgeted = [trip.ask(statement) for statement in costs.statements(wanted.giving)]
    keys = trip.ask(idempotency.load(sorted(wanted.keys, key=str)), wanted.keys)
    named = trip.ask(Q.tasks_get(batch=_batch(wanted.named)), wanted.named)
    ahead_of = trip.ask(Q.tasks_standing(batch=_batch(wanted.ahead)), wanted.ahead)
    ranking = trip.ask(Q.tasks_ranking(batch=_batch(wanted.creators)), wanted.creators)
    workers = trip.ask(agents.get(sorted(wanted.agents)), wanted.agents)
    held = trip.ask(Q.tasks_of_claims(batch=wanted.repeated), wanted.repeated)
    ending: Batch = [(*ref, 0) for ref in sorted(wanted.ending)]
    blocked = trip.ask(Q.tasks_blocked(batch=ending, limit=BLOCKED_MAX + 1), ending)
    retried = trip.ask(Q.tasks_depend(batch=_batch(wanted.retried)), wanted.retried)
    onward = trip.ask(Q.tasks_way_ahead(batch=_batch(wanted.onward), limit=AHEAD_MAX), wanted.onward)
    tagged = trip.ask(Q.tasks_tagged(batch=_batch(wanted.tagged)), wanted.tagged)
    classes = trip.ask(Q.tasks_classes_ready(batch=[(zone,) for zone in sorted(wanted.claiming)]), wanted.claiming)
    await trip.go(tx)

    locked = zones.locked(trip.rows(zone_rows))
    depends = trip.rows(retried)
    blocked_by, blocked_rows = _blocked(trip.rows(blocked)[:BLOCKED_MAX])
    bindings = idempotency.loaded(trip.rows(keys))
    found = _workers(trip.rows(workers), tx.now)
    kinds, first_turns = kinds_of(trip.rows(classes))
    budgets = costs.Budgets.of([trip.rows(place) for place in budgeted], tx.now)
    following = _next_of(asks, found, _payable(kinds, budgets), first_turns, budgets)
    ready, keyed = await _second(tx, wanted, bindings, following)
    own = trip.rows(held)
    heard = speakers.heard([trip.rows(place) for place in spoken], tx.now)
    strategies, shares = _ranking(trip.rows(ranking))
    rows = [*decode([*trip.rows(named), *(row[:-1] for row in own)], Task), *blocked_rows, *keyed]
    known = Known(
        now=tx.now,
        windows=windows,
        problem_of=heard.problem,
        zones=zone_rules.endings(locked.values()),
        rows=[row for row in rows if row.zone_id in locked],
        standings=decode([*trip.rows(ahead_of), *(row[1:] for row in depends)], Standing),
        keys=bindings,
        workers=found,
        kinds=kinds,
        ready=[row for row in decode([row[:-1] for row in ready], Task) if row.zone_id in locked],
        sizes={(str(row[1]), str(row[0])): int(str(row[-1])) for row in [*own, *ready]},
        strategies=strategies,
        shares=shares,
        blocked=blocked_by,
        blocked_cut=len(trip.rows(blocked)) > BLOCKED_MAX,
        ahead=_ahead([(row[1], row[0], row[2]) for row in depends], trip.rows(onward)),
        tags={(str(zone), str(name)): _names(str(tags)) for zone, name, tags in trip.rows(tagged)},
        spent=budgets.spent,
    )
    return Loaded(known, set(locked), {(str(name), int(str(term))) for name, term in trip.rows(fenced)})


class _Wanted:
    """What the commands of a batch name."""

    def __init__(self, asks: Sequence[Command], waiting: Sequence[Claim]) -> None:
        self.zones = zones_of([*asks, *waiting])
        self.terms: set[tuple[str, int]] = {ask.fence for ask in asks if ask.fence is not None}
        self.named: set[Ref] = set()
        self.ahead: set[Ref] = set()
        self.keys: set[Key] = set()
        self.creators: set[tuple[str, str]] = set()
        self.agents: set[AgentRef] = {(ask.zone_id, ask.agent_id) for ask in waiting}
        self.repeated: Batch = []
        self.ending: set[Ref] = set()
        self.retried: set[Ref] = set()
        self.onward: set[Ref] = set()
        self.tagged: set[Ref] = set()
        self.claiming: set[str] = set()
        for ask in asks:
            self._add(ask)
        for claim in waiting:
            self._repeats(claim)
        self.giving = {zone_id for zone_id, _ in self.agents}
        """Zones in which something may be given out."""

    def _add(self, ask: Command) -> None:
        match ask:
            case Create():
                self._makes(ask)
            case Claim():
                self.agents.add((ask.zone_id, ask.agent_id))
                self.claiming.add(ask.zone_id)
                self._repeats(ask)
            case Named():
                self._names(ask)

    def _makes(self, ask: Create) -> None:
        assert ask.caller is not None
        if ask.names_itself:
            self.named.add((ask.zone_id, ask.id))
        if (key := key_of(ask)) is not None:
            self.keys.add(key)
        self.creators.add((ask.zone_id, ask.caller.subject))
        self.ahead |= {(ask.zone_id, task_id) for task_id in ask.depends_on}

    def _names(self, ask: Named) -> None:
        ref = (ask.zone_id, ask.id)
        self.named.add(ref)
        match ask:
            case Complete() | Spread():
                self.ending.add(ref)
            case Progress() if key := key_of(ask):
                self.keys.add(key)
            case Retry():
                self.retried.add(ref)
            case Patch():
                self.onward |= {(ask.zone_id, task_id) for task_id in ask.depends_on or ()}
                self.ahead |= self.onward
                if ask.tags is not None:
                    self.tagged.add(ref)
            case Assign():
                self.agents.add((ask.zone_id, ask.agent_id))

    def _repeats(self, ask: Claim) -> None:
        self.repeated.append((ask.zone_id, ask.agent_id, ask.claim_id or "", State.ASSIGNED))
        if ask.claim_id is not None:
            self.repeated.append((ask.zone_id, ask.agent_id, ask.claim_id, State.RUNNING))
        if (key := key_of_claim(ask.zone_id, ask.agent_id, ask.claim_id)) is not None:
            self.keys.add(key)


async def _second(
    tx: Tx, wanted: _Wanted, bindings: dict[Key, Binding], following: Sequence[Bound]
) -> tuple[list[Row], list[Task]]:
    """What claims may be given, each with how much it says, and what keys stand for that were used before."""
    known = [(each.zone_id, each.subject_id) for each in bindings.values()]
    statements = [*following, *([Q.tasks_get(batch=_batch(known))] if known else [])]
    if not statements:
        return [], []
    answers = await tx.read(*statements)
    keyed = decode(answers.pop(), Task) if known else []
    return [row for answer in answers for row in answer], keyed


def _next_of(
    asks: Iterable[Command],
    workers: dict[AgentRef, Worker],
    kinds: dict[ClassRef, Kind],
    first_turns: dict[ClassRef, int],
    budgets: costs.Budgets,
) -> list[Bound]:
    """The first of each class that a claim may be given from. What has the lowest turns of all stands in the classes
    with the lowest first turns: of these it takes as many classes as it may get tasks. Those whose own budget is spent
    may stand before the others, wherever they are, and are passed over."""
    most = Counter[ClassRef]()
    for ask in asks:
        if not isinstance(ask, Claim):
            continue
        worker = workers.get((ask.zone_id, ask.agent_id))
        number = 0 if worker is None or worker.problem else min(ask.max, worker.free)
        if worker is None or number <= 0:
            continue
        has = worker.capabilities if ask.capabilities is None else worker.capabilities & ask.capabilities
        suited = [ref for ref, kind in kinds.items() if ref[0] == ask.zone_id and kind.suits(has, ask.task_types)]
        number += budgets.spent_tasks(ask.zone_id)
        for ref in sorted(suited, key=first_turns.__getitem__)[:number]:
            most[ref] += number
    return [
        Q.tasks_next(zone_id=zone_id, class_id=class_id, limit=number)
        for (zone_id, class_id), number in sorted(most.items())
    ]


def _payable(kinds: dict[ClassRef, Kind], budgets: costs.Budgets) -> dict[ClassRef, Kind]:
    """Without those of which nothing can be given out: they would stand in the way of the others."""
    if not budgets:
        return kinds
    return {ref: kind for ref, kind in kinds.items() if not budgets.spent_for_type(ref[0], kind.task_type)}


def _batch(refs: Iterable[tuple[str, str]]) -> Batch:
    return [*sorted(refs)]


def _workers(rows: list[Row], now: int) -> dict[AgentRef, Worker]:
    return {
        ref: Worker(
            frozenset(_names(agent.capabilities)),
            agents.free_slots(agent, speaks=True),
            max(now, agent.last_seen_at) + agent.stale_threshold_seconds * SECOND,
            agents.claim_problem(agent),
            agent.status is AgentState.ERROR,
            agents.was_just_heard(agent, now),
            agents.is_unheard(agent),
        )
        for ref, agent in agents.by_ref(rows).items()
    }


def kinds_of(rows: list[Row]) -> tuple[dict[ClassRef, Kind], dict[ClassRef, int]]:
    """What may begin: the classes, and the first turn of each."""
    kinds: dict[ClassRef, Kind] = {}
    turns: dict[ClassRef, int] = {}
    for zone_id, class_id, task_type, capabilities, turn in rows:
        ref = (str(zone_id), str(class_id))
        kinds[ref] = Kind(str(task_type), frozenset(_names(str(capabilities))))
        turns[ref] = int(str(turn))
    return kinds, turns


def _ranking(rows: list[Row]) -> tuple[dict[str, Strategy], dict[tuple[str, str], int]]:
    strategies: dict[str, Strategy] = {}
    shares: dict[tuple[str, str], int] = {}
    for zone_id, creator, strategy, turn, served in rows:
        zone = str(zone_id)
        strategies[zone] = Strategy(str(strategy))
        if strategies[zone] is Strategy.FAIR:
            shares[zone, str(creator)] = int(str(turn))
            shares[zone, ""] = int(str(served))
    return strategies, shares


def _blocked(rows: list[Row]) -> tuple[dict[Ref, list[Ref]], list[Task]]:
    waiting = decode([row[1:] for row in rows], Task)
    blocked: dict[Ref, list[Ref]] = {}
    for row, task in zip(rows, waiting, strict=True):
        blocked.setdefault((task.zone_id, str(row[0])), []).append((task.zone_id, task.id))
    return blocked, waiting


def _ahead(*found: Iterable[Sequence[object]]) -> dict[Ref, list[str]]:
    """(zone, task, what it depends on) of each."""
    ahead: dict[Ref, list[str]] = {}
    for rows in found:
        for zone_id, task_id, depends_on in rows:
            ahead.setdefault((str(zone_id), str(task_id)), []).append(str(depends_on))
    return ahead
