"""Invocations for tests: a service, invocations of it, and a worker that claims them."""

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
from quarterdeck.domain.services.operations.register import Registrar
from tests.support.builders import ZONE, admin
from tests.support.runtime import RuntimeHarness
from tests.support.structs import build_struct

_numbers = itertools.count(1)


class InvocationHarness:
    """One service of a zone, on a runtime."""

    def __init__(self, runtime: RuntimeHarness, service_id: str, zone_id: str = ZONE) -> None:
        self.runtime = runtime
        self.service_id = service_id
        self.zone_id = zone_id
        self.caller: Caller = admin(zone_id)

    async def create(self, key: str | None = None, **fields: object) -> Invocation:
        return (await self.enqueue(key, **fields)).invocation

    async def enqueue(self, key: str | None = None, **fields: object) -> EnqueuedInvocation:
        defaults: dict[str, object] = {
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
        result = await self.runtime.submit_invocation(build_struct(Enqueue, **(defaults | fields)))
        assert isinstance(result, EnqueuedInvocation)
        return result

    def claim_command(self, limit: int = 1, claim_id: str | None = None, poll: ClaimPoll | None = None) -> Claim:
        return Claim(
            zone_id=self.zone_id,
            caller=self.caller,
            service_id=self.service_id,
            limit=limit,
            attempt_tokens=tuple(new_id() for _ in range(limit)),
            claim_id=claim_id,
            waiter=poll,
        )

    async def claim(self, limit: int = 1, claim_id: str | None = None) -> tuple[Invocation, ...]:
        return await self.submit_claim(self.claim_command(limit, claim_id))

    async def submit_claim(self, command: Claim) -> tuple[Invocation, ...]:
        leases = await self.runtime.submit_invocation(command)
        assert isinstance(leases, ClaimedInvocations)
        return leases.items

    async def complete(
        self,
        row: Invocation,
        status: Literal["succeeded", "failed", "canceled"] = "succeeded",
        *,
        retryable: bool = True,
    ) -> Invocation:
        command = Complete(
            zone_id=row.zone_id,
            caller=self.caller,
            id=row.id,
            status=status,
            result='"r"',
            error='"e"',
            retryable=retryable,
            attempt_token=row.attempt_token,
        )
        return await self._submit(command)

    async def heartbeat(self, row: Invocation) -> Invocation:
        return await self._submit(
            Heartbeat(zone_id=row.zone_id, caller=self.caller, id=row.id, attempt_token=row.attempt_token)
        )

    async def cancel(self, row: Invocation) -> Invocation:
        return await self._submit(Cancel(zone_id=row.zone_id, caller=self.caller, id=row.id, reason="enough"))

    async def release(self, row: Invocation) -> Invocation:
        return await self._submit(Release(zone_id=row.zone_id, id=row.id, attempt_token=row.attempt_token or ""))

    async def check_overdue(self, row: Invocation) -> Invocation:
        return await self._submit(CheckOverdue(zone_id=row.zone_id, id=row.id))

    async def read(self, row: Invocation) -> Invocation:
        """The row as it is stored."""
        return await self.runtime.read_invocation(row.zone_id, row.id)

    async def event_types(self, row: Invocation) -> list[str]:
        log = await self.runtime.read_log()
        return [event.type.removeprefix("invocation.") for event in log if event.subject == row.id]

    async def _submit(self, command: Complete | Heartbeat | Cancel | Release | CheckOverdue) -> Invocation:
        row = await self.runtime.submit_invocation(command)
        assert isinstance(row, Invocation)
        return row


async def register_service(
    runtime: RuntimeHarness, zone_id: str = ZONE, *, session_id: str | None = None, **fields: object
) -> InvocationHarness:
    """Register a service of the application `app`, or of one of its sessions."""
    registrar = Registrar(private_allowed=True)
    command = Register(
        id=new_id(),
        zone_id=zone_id,
        caller=admin(zone_id),
        endpoint_url=f"http://worker.example/{next(_numbers)}",
        application_id="app",
        session_id=session_id,
    )
    if fields:
        command = msgspec.structs.replace(command, update=msgspec.structs.replace(command.update, **fields))
    results = await runtime.engine.transact(lambda tx: registrar.register(tx, [command]), zones=[zone_id])
    [result] = results
    if isinstance(result, Exception):
        raise result
    assert not isinstance(result, type(None))
    return InvocationHarness(runtime, command.id, zone_id)
