"""Invocations as tests write them: a service, calls to it, and a worker that takes them."""

from __future__ import annotations

import itertools
from typing import Literal

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.ids import new_id
from quarterdeck.domain.invocations.model import (
    Cancel,
    CheckOverdue,
    Claim,
    ClaimedInvocations,
    Complete,
    Enqueue,
    EnqueuedInvocation,
    Heartbeat,
    Invocation,
    Release,
    RetryPolicy,
)
from quarterdeck.domain.invocations.operations.long_poll import ClaimPoll
from quarterdeck.domain.services.model import Register
from quarterdeck.domain.services.operations import Registrar
from tests.support.asking import ZONE, admin
from tests.support.keel import Keel
from tests.support.making import struct_of

_numbers = itertools.count(1)


class Calling:
    """One service of a zone, on a keel."""

    def __init__(self, keel: Keel, service_id: str, zone_id: str = ZONE) -> None:
        self.keel = keel
        self.service_id = service_id
        self.zone_id = zone_id
        self.caller: Caller = admin(zone_id)

    async def call(self, key: str | None = None, **asked: object) -> Invocation:
        return (await self.enqueue(key, **asked)).invocation

    async def enqueue(self, key: str | None = None, **asked: object) -> EnqueuedInvocation:
        plain: dict[str, object] = {
            "zone_id": self.zone_id,
            "caller": self.caller,
            "id": new_id(),
            "service_id": self.service_id,
            "idempotency_key": key or f"key {next(_numbers)}",
            "request_digest": "",
            "method": "m",
            "params": '{"a":1}',
            "metadata": "{}",
            "source_session_id": None,
            "target_session_id": None,
            "timeout_ms": 30_000,
            "retry_policy": RetryPolicy(backoff_ms=0),
        }
        done = await self.keel.invocations.submit(struct_of(Enqueue, **(plain | asked)))
        assert isinstance(done, EnqueuedInvocation)
        return done

    def asking(self, most: int = 1, claim_id: str | None = None, waiter: ClaimPoll | None = None) -> Claim:
        return Claim(
            zone_id=self.zone_id,
            caller=self.caller,
            service_id=self.service_id,
            limit=most,
            attempt_tokens=tuple(new_id() for _ in range(most)),
            claim_id=claim_id,
            waiter=waiter,
        )

    async def claim(self, most: int = 1, claim_id: str | None = None) -> tuple[Invocation, ...]:
        return await self.submit_claim(self.asking(most, claim_id))

    async def submit_claim(self, ask: Claim) -> tuple[Invocation, ...]:
        leases = await self.keel.invocations.submit(ask)
        assert isinstance(leases, ClaimedInvocations)
        return leases.items

    async def complete(
        self,
        row: Invocation,
        status: Literal["succeeded", "failed", "canceled"] = "succeeded",
        *,
        retryable: bool = True,
    ) -> Invocation:
        ask = Complete(
            zone_id=row.zone_id,
            caller=self.caller,
            id=row.id,
            status=status,
            result='"r"',
            error='"e"',
            retryable=retryable,
            attempt_token=row.attempt_token,
        )
        return await self._moved(ask)

    async def beat(self, row: Invocation) -> Invocation:
        return await self._moved(
            Heartbeat(zone_id=row.zone_id, caller=self.caller, id=row.id, attempt_token=row.attempt_token)
        )

    async def cancel(self, row: Invocation) -> Invocation:
        return await self._moved(Cancel(zone_id=row.zone_id, caller=self.caller, id=row.id, reason="enough"))

    async def release(self, row: Invocation) -> Invocation:
        return await self._moved(Release(zone_id=row.zone_id, id=row.id, attempt_token=row.attempt_token or ""))

    async def overdue(self, row: Invocation) -> Invocation:
        return await self._moved(CheckOverdue(zone_id=row.zone_id, id=row.id))

    async def now(self, row: Invocation) -> Invocation:
        """The row as it is stored."""
        return await self.keel.invocation(row.zone_id, row.id)

    async def events(self, row: Invocation) -> list[str]:
        log = await self.keel.log()
        return [event.type.removeprefix("invocation.") for event in log if event.subject == row.id]

    async def _moved(self, ask: Complete | Heartbeat | Cancel | Release | CheckOverdue) -> Invocation:
        row = await self.keel.invocations.submit(ask)
        assert isinstance(row, Invocation)
        return row


async def calling(keel: Keel, zone_id: str = ZONE, *, session_id: str | None = None, **said: object) -> Calling:
    """A service of the application `app`, registered by it, or by one of its sessions."""
    registrar = Registrar(private_allowed=True)
    ask = Register(
        id=new_id(),
        zone_id=zone_id,
        caller=admin(zone_id),
        endpoint_url=f"http://worker.example/{next(_numbers)}",
        application_id="app",
        session_id=session_id,
    )
    if said:
        ask = msgspec.structs.replace(ask, update=msgspec.structs.replace(ask.update, **said))
    registered = await keel.engine.transact(lambda tx: registrar.register(tx, [ask]), zones=[zone_id])
    [done] = registered
    if isinstance(done, Exception):
        raise done
    assert not isinstance(done, type(None))
    return Calling(keel, ask.id, zone_id)
