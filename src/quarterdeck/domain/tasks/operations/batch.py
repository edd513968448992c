"""One batch of everything: load under the zones' locks, decide on the board, write in one commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.tasks.model.commands import Claim, Command, Create, Named, Outcome
from quarterdeck.domain.tasks.model.rows import AgentRef, Content, Leased, Leases, Ref, TaskSettings
from quarterdeck.domain.tasks.operations import load, persist
from quarterdeck.domain.tasks.rules.batch_input import Kind, Windows
from quarterdeck.domain.tasks.rules.decider import Board
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.long_poll import Waiter, Waiters
from quarterdeck.engine.transaction import Tx

log = logging.getLogger("quarterdeck.tasks")
NOTHING = Leases(())
TaskWaiter = Waiter[Claim, str, Leased]
TaskWaiters = Waiters[Claim, str, Leased]
"""Who waits for work in this process, by zone."""


def waiters() -> TaskWaiters:
    return Waiters(lambda leased: leased.task.id)


def windows_of(told: TaskSettings) -> Windows:
    return Windows(
        backoff_cap_ms=told.task_backoff_max_seconds * 1_000,
        overdue_ms=round(told.task_overdue_minutes * 60_000),
        hung_ms=round(told.task_hung_minutes * 60_000),
    )


class Exchange:
    """An object because it knows how long things may take, and who waits for work in this process."""

    def __init__(self, windows: Windows, waiters: TaskWaiters, again_seconds: float) -> None:
        self._windows = windows
        self._waiters = waiters
        self._again_seconds = again_seconds

    async def run(self, tx: Tx, asks: Sequence[Command]) -> list[Outcome | Problem | Busy]:
        hungry = self._hungry(ask for ask in asks if isinstance(ask, Create))
        loaded = await load.load(tx, asks, [waiter.claim for waiter in hungry], self._windows)
        why_not = await zones.unlocked(tx, zones_of(asks) - loaded.locked)
        board = Board(loaded.known)
        outcomes: list[Outcome | Problem | Busy] = [
            sessions.held_up(ask, why_not) or _too_late(ask, loaded) or board.decide(ask) for ask in asks
        ]
        _note_conflicts(asks, outcomes)
        self._park(tx, asks, outcomes, board)
        handed = self._hand_over(board, hungry, loaded.locked)
        given = [outcome for outcome in outcomes if isinstance(outcome, Leases)] + [*handed.values()]
        contents = await persist.write(tx, board, [leased for leases in given for leased in leases.items])
        for waiter, leases in handed.items():
            tx.on_commit(partial(self._waiters.hand, waiter, _told(leases, contents).items))
        if freed := {ref for ref, by in board.held.items() if by < 0}:
            tx.on_commit(partial(self._let_ask, freed))
        return [_told(outcome, contents) if isinstance(outcome, Leases) else outcome for outcome in outcomes]

    # -- those who wait ------------------------------------------------------------------------------------------

    def _hungry(self, creates: Iterable[Create]) -> list[TaskWaiter]:
        """The first of those who wait for what is made here, as many as there is to give. By what they said when they
        began to wait: what they may take is decided by what is loaded."""
        found: dict[TaskWaiter, int] = {}
        now = time.monotonic()
        for ask in creates:
            if ask.depends_on or ask.run_at is not None:
                continue
            kind = Kind(ask.task_type, frozenset(ask.required_capabilities))
            for waiter in self._waiters.of(ask.zone_id):
                if found.get(waiter, 0) < waiter.claim.max and wants(waiter.claim, kind, now):
                    found[waiter] = found.get(waiter, 0) + 1
                    break
        return [*found]

    def _park(
        self, tx: Tx, asks: Sequence[Command], outcomes: Sequence[Outcome | Problem | Busy], board: Board
    ) -> None:
        """Whoever found nothing waits from this commit on, so that nothing of this process can pass in between."""
        for ask, outcome in zip(asks, outcomes, strict=True):
            if isinstance(ask, Claim) and isinstance(ask.waiter, Waiter) and outcome == NOTHING:
                there_is_work = board.could_be_given(ask)
                ask.waiter.claim = msgspec.structs.replace(
                    ask,
                    capabilities=board.capabilities(ask),
                    waiter=None,
                    not_before=time.monotonic() + self._again_seconds if there_is_work else 0.0,
                )
                tx.on_commit(partial(self._waiters.add, ask.waiter))

    def _let_ask(self, freed: set[AgentRef]) -> None:
        """These agents have a place free again."""
        for zone_id in {zone_id for zone_id, _ in freed}:
            for waiter in self._waiters.of(zone_id):
                claim = waiter.claim
                if claim.not_before and (zone_id, claim.agent_id) in freed:
                    waiter.claim = msgspec.structs.replace(claim, not_before=0.0)
                    self._waiters.stir.set()

    def _hand_over(self, board: Board, hungry: Iterable[TaskWaiter], locked: set[str]) -> dict[TaskWaiter, Leases]:
        """What was made goes to whoever waits for it, in the same commit. One who gets nothing (its session has ended,
        its agent is full, its zone is not ours to look at here) asks, and is told why."""
        handed: dict[TaskWaiter, Leases] = {}
        for waiter in hungry:
            claim = waiter.claim
            home = claim.bearer
            known = home is None or home.zone_id in locked
            given = board.decide(claim) if known and board.fresh else None
            handed[waiter] = given if isinstance(given, Leases) else NOTHING
        return handed


def wants(claim: Claim, kind: Kind, now: float) -> bool:
    """Whether one who waits may be given what is of this kind, as far as is known without asking."""
    return claim.not_before <= now and kind.suits(claim.capabilities or frozenset(), claim.task_types)


def _note_conflicts(asks: Sequence[Command], outcomes: Sequence[Outcome | Problem | Busy]) -> None:
    """Two believe that they hold the same task: one stood still for too long, or a backup was restored. The later one
    does hold it; that there is another is worth a line."""
    for ask, outcome in zip(asks, outcomes, strict=True):
        if not isinstance(outcome, Problem) or outcome.code != "stale_attempt" or not isinstance(ask, Named):
            continue
        if outcome.members.get("taskStatus") in HELD:
            log.warning("a word of an older attempt about %s was refused: another holds it", ask.id)


def _too_late(ask: Command, loaded: load.Loaded) -> Problem | None:
    """The coordinator's word counts only in its own term."""
    if ask.fence is None or ask.fence in loaded.terms:
        return None
    name, term = ask.fence
    return LeaseLost("lease_lost", f"Term {term} of the lease {name!r} is over.")


def _told(leases: Leases, contents: dict[Ref, tuple[Content, tuple[str, ...]]]) -> Leases:
    return Leases(
        tuple(
            msgspec.structs.replace(each, content=said[0], depends_on=said[1])
            for each in leases.items
            if (said := contents.get((each.task.zone_id, each.task.id))) is not None
        )
    )
