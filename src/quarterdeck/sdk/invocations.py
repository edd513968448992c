"""Invocations: durable calls to a service, and the bulk calls that workers make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Unpack

from quarterdeck.sdk.errors import NotSucceeded, TimedOut
from quarterdeck.sdk.options import EnqueueOptions
from quarterdeck.sdk.resource import Resource, encode_options, ensure_key, without_none
from quarterdeck.sdk.transport import ApiCall, Transport
from quarterdeck.sdk.types import (
    FINAL_STATUSES,
    Completion,
    Invocation,
    InvocationStatus,
    Item,
    Items,
    Lease,
    Page,
    Token,
)
from quarterdeck.sdk.wait import EndWaiter


class Invocations(Resource):
    def __init__(self, transport: Transport, zone: str) -> None:
        super().__init__(transport, zone)
        end_event_types = [f"invocation.{status}" for status in sorted(FINAL_STATUSES)]
        self._end_waiter: EndWaiter[Invocation] = EndWaiter(transport, self._path("events"), end_event_types)

    async def enqueue(
        self,
        service_id: str,
        method: str,
        params: object = None,
        *,
        key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Invocation:
        """Enqueue a durable call to a service's method. Repeated calls with the same `key` enqueue it only once."""
        body = {"service_id": service_id, "method": method, "params": params, **encode_options(EnqueueOptions, options)}
        return await self._call(ApiCall("POST", self._path("invocations"), body=body, key=ensure_key(key)), Invocation)

    async def call(
        self,
        service_id: str,
        method: str,
        params: object = None,
        *,
        key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> object:
        """Enqueue an invocation, wait for it to end, and return its result.

        Raises `NotSucceeded` if it ends without a result. `timeout_ms` and the retry policy limit how long it takes.
        """
        invocation = await self.enqueue(service_id, method, params, key=key, **options)
        return (await self.wait(invocation.id)).result

    async def get(self, invocation_id: str) -> Invocation:
        return await self._get(self._path("invocations", invocation_id), Invocation)

    def list(
        self,
        *,
        status: InvocationStatus | None = None,
        service_id: str | None = None,
        source_session_id: str | None = None,
        target_session_id: str | None = None,
    ) -> AsyncIterator[Invocation]:
        """Iterate over invocations, newest first."""
        filters = {
            "status": status,
            "service_id": service_id,
            "source_session_id": source_session_id,
            "target_session_id": target_session_id,
        }
        return self._iter_items(self._path("invocations"), filters, Page[Invocation])

    async def cancel(self, invocation_id: str, *, reason: str | None = None) -> Invocation:
        """Cancel an invocation that has not ended.

        A running invocation ends when its worker stops it, or at its deadline.
        """
        body = without_none({"reason": reason})
        return await self._change("POST", self._path("invocations", invocation_id, "cancel"), Invocation, body)

    async def wait(self, invocation_id: str, *, timeout: float | None = None) -> Invocation:
        """Wait until the invocation has succeeded, and return it.

        Raises `NotSucceeded` if it ends without a result. Raises `TimedOut` if it has not ended within `timeout`
        seconds; the invocation keeps running.
        """
        try:
            async with asyncio.timeout(timeout):
                invocation = await self._end_waiter.wait(invocation_id, self.get)
        except TimeoutError:
            raise TimedOut(
                "wait_timeout", f"The invocation {invocation_id} did not end within {timeout:g} s."
            ) from None
        if invocation.status != "succeeded":
            raise NotSucceeded(invocation)
        return invocation

    # -- for workers -----------------------------------------------------------------------------------------------

    async def claim(
        self, service_id: str, claim_id: str, *, most: int = 1, wait_seconds: float = 0.0
    ) -> tuple[Lease, ...]:
        """Claim up to `most` pending invocations. If there are none, wait up to `wait_seconds` for new ones.

        The same `claim_id` returns the same leases, so a claim whose response was lost can be repeated.
        """
        body = {"max": most, "wait_ms": int(wait_seconds * 1000), "claim_id": claim_id}
        path = self._path("services", service_id, "claim")
        response = await self._call(
            ApiCall("POST", path, body=body, is_idempotent=True, wait_seconds=wait_seconds), Items[Lease]
        )
        return tuple(response.items)

    async def complete(self, completions: Sequence[Completion]) -> tuple[Item, ...]:
        """Report the outcomes of up to 100 attempts. A repeated report gets the same reply."""
        return await self._send_items("complete", completions)

    async def heartbeat(self, tokens: Sequence[Token]) -> tuple[Item, ...]:
        """Extend up to 100 leases. The response marks the invocations that were canceled."""
        return await self._send_items("heartbeat", tokens)

    async def release(self, tokens: Sequence[Token]) -> tuple[Item, ...]:
        """Give back up to 100 leases. Their attempts do not count."""
        return await self._send_items("release", tokens)

    async def _send_items(self, action: str, items: Sequence[Completion] | Sequence[Token]) -> tuple[Item, ...]:
        path = self._path("invocations", action)
        return tuple((await self._change("POST", path, Items[Item], {"items": items})).items)
