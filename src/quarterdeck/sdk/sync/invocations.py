"""Written by `make sdk` from `sdk/invocations.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from quarterdeck.sdk import invocations
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.options import EnqueueOptions
from quarterdeck.sdk.types import Completion, Invocation, InvocationStatus, Item, Lease, Token


class Invocations:
    def __init__(self, inner: invocations.Invocations, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def enqueue(
        self,
        service_id: str,
        method: str,
        params: object = None,
        *,
        key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Invocation:
        """Has a method of a service called: durably, and once for each `key`."""
        return self._loop_thread.run(self._inner.enqueue(service_id, method, params, key=key, **options))

    def call(
        self,
        service_id: str,
        method: str,
        params: object = None,
        *,
        key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> object:
        """Enqueues, waits for the end, and gives the result. However it ends otherwise, `NotSucceeded` is raised. How
        long that may take is for `timeout_ms` and the policy of its attempts to say."""
        return self._loop_thread.run(self._inner.call(service_id, method, params, key=key, **options))

    def get(self, invocation_id: str) -> Invocation:
        return self._loop_thread.run(self._inner.get(invocation_id))

    def list(
        self,
        *,
        status: InvocationStatus | None = None,
        service_id: str | None = None,
        source_session_id: str | None = None,
        target_session_id: str | None = None,
    ) -> Iterator[Invocation]:
        """Newest first."""
        return self._loop_thread.iterate(
            self._inner.list(
                status=status,
                service_id=service_id,
                source_session_id=source_session_id,
                target_session_id=target_session_id,
            )
        )

    def cancel(self, invocation_id: str, *, reason: str | None = None) -> Invocation:
        """Asks for the end of one that is not over. One that runs is canceled when its worker says so, or when its time
        is over."""
        return self._loop_thread.run(self._inner.cancel(invocation_id, reason=reason))

    def wait(self, invocation_id: str, *, timeout: float | None = None) -> Invocation:
        """The invocation, once it has succeeded. However it ends otherwise, `NotSucceeded` is raised; if it is not over
        within `timeout` seconds, `TimedOut`, and it goes on."""
        return self._loop_thread.run(self._inner.wait(invocation_id, timeout=timeout))

    def claim(self, service_id: str, claim_id: str, *, most: int = 1, wait_seconds: float = 0.0) -> tuple[Lease, ...]:
        """Leases of work that waits, or comes within the time. The same `claim_id` gives the same leases again, so a
        claim whose answer was lost is made once more with its own."""
        return self._loop_thread.run(self._inner.claim(service_id, claim_id, most=most, wait_seconds=wait_seconds))

    def complete(self, completions: Sequence[Completion]) -> tuple[Item, ...]:
        """What became of attempts, at most 100. What is said twice is answered twice."""
        return self._loop_thread.run(self._inner.complete(completions))

    def heartbeat(self, tokens: Sequence[Token]) -> tuple[Item, ...]:
        """Extends leases, at most 100; the answer says whose cancellation was asked for."""
        return self._loop_thread.run(self._inner.heartbeat(tokens))

    def release(self, tokens: Sequence[Token]) -> tuple[Item, ...]:
        """Gives leases back, at most 100: their attempts do not count."""
        return self._loop_thread.run(self._inner.release(tokens))
