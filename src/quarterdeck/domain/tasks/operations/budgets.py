"""Budgets by hand; and what was spent, for whoever wants to know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.operations.authorization import Speakers, require_power
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.tasks.model.cost_types import (
    BUDGETS_MAX,
    Budget,
    BudgetAsk,
    BudgetKey,
    CostFilter,
    Grouped,
    PutBudget,
    RemoveBudget,
    Scope,
    Sum,
)
from quarterdeck.domain.tasks.model.rows import Ref
from quarterdeck.domain.tasks.operations.costs import told
from quarterdeck.domain.tasks.queries import MONEY, Q
from quarterdeck.domain.tasks.rules import budgets as rules, errors
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import Bound

Batch = list[tuple[object, ...]]
READ = "costs.read"
CHANGE = "budgets.change"
EVER = (0, 10**9)
"""Days."""


# -- changing ----------------------------------------------------------------------------------------------------


async def change(tx: Tx, asks: Sequence[PutBudget | RemoveBudget]) -> list[Budget | Problem | Busy]:
    """Makes, changes and removes budgets, in the order of asking. Under the zones' locks, as whatever is charged to a
    budget or decided by one."""
    speakers = Speakers(asks)
    spoken = speakers.statements()
    named: Batch = [*sorted({(a.zone_id, a.scope_key) for a in asks if a.scope is Scope.TASK})]
    batch: Batch = [(zone_id,) for zone_id in sorted({ask.zone_id for ask in asks})]
    zone_rows, *answers, rows, tasks = await tx.read(
        zones.lock(tx, zones_of(asks)), *spoken, MONEY.budgets_of_zones(batch=batch), Q.tasks_standing(batch=named)
    )
    locked = zones.locked(zone_rows)
    heard = speakers.heard(answers, tx.now)
    why_not = await zones.unlocked(tx, zones_of(asks) - locked.keys())
    endings = zone_rules.endings(locked.values())
    there = {(str(row[0]), str(row[1])) for row in tasks}
    ledger = _Ledger(decode(rows, Budget))
    outcomes: list[Budget | Problem | Busy] = []
    for ask in asks:
        problem = (
            sessions.held_up(ask, why_not)
            or heard.problem(ask, CHANGE)
            or endings.get(ask.zone_id)
            or _unknown_task(ask, there)
        )
        outcomes.append(problem or await ledger.decide(tx, ask))
    ledger.write(tx)
    return outcomes


def _unknown_task(ask: BudgetAsk, there: set[Ref]) -> Problem | None:
    """What is removed need not be there any more."""
    missing = ask.scope is Scope.TASK and (ask.zone_id, ask.scope_key) not in there
    return errors.not_found(ask.scope_key) if missing and isinstance(ask, PutBudget) else None


class _Ledger:
    """The budgets of a batch's zones, as they become."""

    def __init__(self, known: Iterable[Budget]) -> None:
        self._known: dict[BudgetKey, Budget] = {budget.key: budget for budget in known}
        self._put: set[BudgetKey] = set()
        self._removed: set[BudgetKey] = set()

    async def decide(self, tx: Tx, ask: PutBudget | RemoveBudget) -> Budget | Problem:
        known = self._known.get(ask.key)
        if isinstance(ask, RemoveBudget):
            if known is None:
                return rules.not_found(ask.scope, ask.period)
            return self._remove(tx, ask, rules.at(known, tx.now))
        if known is None and sum(1 for key in self._known if key[0] == ask.zone_id) >= BUDGETS_MAX:
            return rules.too_many()
        used = Sum() if known is not None else await _used(tx, ask)
        budget = rules.put(ask, known, used, tx.now)
        tx.emit(told("budget.changed", budget, ask.caller.subject, ask.trace))
        if rules.is_spent(budget) and not (known is not None and rules.is_spent(rules.at(known, tx.now))):
            tx.emit(told("budget.spent", budget, ask.caller.subject, ask.trace))
        self._known[ask.key] = budget
        self._put.add(ask.key)
        self._removed.discard(ask.key)
        return budget

    def _remove(self, tx: Tx, ask: RemoveBudget, budget: Budget) -> Budget:
        del self._known[ask.key]
        self._put.discard(ask.key)
        self._removed.add(ask.key)
        tx.emit(told("budget.changed", budget, ask.caller.subject, ask.trace, is_removed=True))
        return budget

    def write(self, tx: Tx) -> None:
        if self._removed:
            tx.write(MONEY.budgets_remove(batch=[*sorted(self._removed)]))
        if self._put:
            tx.write(MONEY.budgets_set(batch=[msgspec.structs.astuple(self._known[key]) for key in sorted(self._put)]))


async def _used(tx: Tx, ask: PutBudget) -> Sum:
    """What its period has seen before there was the budget."""
    began, _ = rules.span(ask.period, tx.now)
    since = rules.day_of(began)
    if ask.scope is Scope.TASK:
        statement = MONEY.costs_of_task_since(zone_id=ask.zone_id, task_id=ask.scope_key, since=since)
    else:
        of_type = ask.scope_key if ask.scope is Scope.TASK_TYPE else None
        statement = MONEY.costs_since(zone_id=ask.zone_id, task_type=of_type, since=since)
    [[row]] = await tx.read(statement)
    return rules.capped(Sum(*(int(str(number)) for number in row)))


# -- looking -----------------------------------------------------------------------------------------------------


async def page(tx: Tx, caller: Caller, zone_id: str, after: tuple[str, str, str], limit: int) -> list[Budget]:
    await require_power(tx, caller, zone_id, READ)
    scope, scope_key, period = after
    [rows] = await tx.read(
        MONEY.budgets_page(zone_id=zone_id, scope=scope, scope_key=scope_key, period=period, limit=limit)
    )
    if not rows:
        await zones.require(tx, zone_id)
    return [rules.at(budget, tx.now) for budget in decode(rows, Budget)]


async def costs(tx: Tx, wanted: CostFilter) -> list[Grouped]:
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    [rows] = await tx.read(_grouped(wanted))
    if not rows:
        await zones.require(tx, wanted.zone_id)
    # PostgreSQL sums to numbers of any length; these are not.
    found = [Grouped(str(key), *(int(str(number)) for number in sums)) for key, *sums in rows]
    if wanted.group_by != "day":
        return found
    return [msgspec.structs.replace(each, key=rules.name_of_day(int(each.key))) for each in found]


def _grouped(wanted: CostFilter) -> Bound:
    first, last = EVER
    since = first if wanted.since is None else wanted.since
    until = last if wanted.until is None else wanted.until
    zone_id, after, limit = wanted.zone_id, wanted.after, wanted.limit
    if wanted.group_by == "day":
        day = first - 1 if after is None else rules.day_named(after, "cursor")
        return MONEY.costs_by_day(zone_id=zone_id, since=since, until=until, after=day, limit=limit)
    if wanted.group_by == "task":
        return MONEY.costs_by_task(zone_id=zone_id, since=since, until=until, after=after, limit=limit)
    by = wanted.group_by
    return MONEY.costs_by(zone_id=zone_id, grouped_by=by, since=since, until=until, after=after, limit=limit)
