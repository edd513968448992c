"""The claims that are waiting in this process, by service (`engine.long_poll`), and the reads that wake them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.domain.invocations.model import Claim, Invocation
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules.decider import ServiceKey
from quarterdeck.engine import long_poll
from quarterdeck.engine.transaction import Engine, Transaction

ClaimedItems = tuple[Invocation, ...]
ClaimPoll = long_poll.LongPoll[Claim, ServiceKey, Invocation]


class ClaimPolls(long_poll.LongPolls[Claim, ServiceKey, Invocation]):
    def __init__(self) -> None:
        super().__init__(lambda row: row.id)


def new_claim_poll(claim: Claim) -> ClaimPoll:
    return ClaimPoll(claim, (claim.zone_id, claim.service_id))


async def wait_for_invocations(
    claim: Claim, submit: Callable[[Claim], Awaitable[ClaimedItems]], polls: ClaimPolls, timeout_seconds: float
) -> ClaimedItems:
    key = (claim.zone_id, claim.service_id)
    return await long_poll.wait_for_work(claim, key, submit, polls, timeout_seconds)


@dataclass(slots=True)
class ReadyService:
    """A service, and when its next pending invocation may start. `next_at` is None if nothing is pending."""

    service: ServiceKey
    next_at: Millis | None
    now: Millis
    """The time of the read, by the database's clock."""
    is_registered: bool = True


async def load_ready_services(tx: Transaction, services: Iterable[ServiceKey]) -> list[ReadyService]:
    [rows] = await tx.read(Q.invocations_next_available(batch=[*services]))
    return [
        ReadyService(
            (str(zone_id), str(service_id)),
            None if next_at is None else int(str(next_at)),
            int(str(now)),
            registered is not None,
        )
        for zone_id, service_id, next_at, registered, now in rows
    ]


class ReadyPollWaker:
    """Finds, in one read, services that have due invocations or have ended, and lets their waiting claims claim again.

    A call returns the number of seconds until the next check.
    """

    def __init__(self, engine: Engine, polls: ClaimPolls, poll_seconds: float) -> None:
        self._engine = engine
        self._polls = polls
        self._poll_seconds = poll_seconds

    async def __call__(self, services: Sequence[ServiceKey]) -> float:
        ready_services = await self._engine.read(
            lambda tx: load_ready_services(tx, services), zones={zone_id for zone_id, _ in services}
        )
        pause_seconds = self._poll_seconds
        for ready in ready_services:
            if not ready.is_registered:
                # No work will come for these polls: all claim again and get the error.
                self._polls.retry_first(ready.service, len(self._polls))
            if ready.next_at is None:
                continue
            if ready.next_at <= ready.now:
                # One poll claims again and takes up to its limit; the next check finds out whether more is due.
                self._polls.retry_first(ready.service, 1)
                self._polls.wakeup.set()
            else:
                pause_seconds = min(pause_seconds, (ready.next_at - ready.now) / 1000)
        return pause_seconds
