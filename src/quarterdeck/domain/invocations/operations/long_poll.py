"""Who waits for invocations in this process, by service (`engine.waiting`), and what they look for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.domain.invocations.model import Claim, Invocation
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules.decider import ServiceKey
from quarterdeck.engine import long_poll
from quarterdeck.engine.transaction import Engine, Tx

Given = tuple[Invocation, ...]
ServiceWaiter = long_poll.Waiter[Claim, ServiceKey, Invocation]


class Waiters(long_poll.Waiters[Claim, ServiceKey, Invocation]):
    def __init__(self) -> None:
        super().__init__(lambda row: row.id)


def waiter_of(claim: Claim) -> ServiceWaiter:
    return ServiceWaiter(claim, (claim.zone_id, claim.service_id))


async def wait_for_work(
    claim: Claim, submit: Callable[[Claim], Awaitable[Given]], waiters: Waiters, seconds: float
) -> Given:
    key = (claim.zone_id, claim.service_id)
    return await long_poll.wait_for_work(claim, key, submit, waiters, seconds)


@dataclass(slots=True)
class Ready:
    """When the next of a service may begin, by the database's clock."""

    service: ServiceKey
    at: Millis | None
    now: Millis
    is_registered: bool = True


async def ready(tx: Tx, services: Iterable[ServiceKey]) -> list[Ready]:
    [rows] = await tx.read(Q.invocations_ready(batch=[*services]))
    return [
        Ready((str(zone), str(name)), None if at is None else int(str(at)), int(str(now)), there is not None)
        for zone, name, at, there, now in rows
    ]


class Look:
    """Once for all who wait: has those ask again who can be served; how long until the next can be."""

    def __init__(self, engine: Engine, waiters: Waiters, poll_seconds: float) -> None:
        self._engine = engine
        self._waiters = waiters
        self._poll_seconds = poll_seconds

    async def __call__(self, services: Sequence[ServiceKey]) -> float:
        found = await self._engine.read(lambda tx: ready(tx, services), zones={zone_id for zone_id, _ in services})
        pause = self._poll_seconds
        for each in found:
            if not each.is_registered:
                # Nothing will ever come: all ask again, and are told so.
                self._waiters.ask_again(each.service, len(self._waiters))
            if each.at is None:
                continue
            if each.at <= each.now:
                # One asks, and takes what it can; it is the next look that finds whether there is more.
                self._waiters.ask_again(each.service, 1)
                self._waiters.stir.set()
            else:
                pause = min(pause, (each.at - each.now) / 1000)
        return pause
