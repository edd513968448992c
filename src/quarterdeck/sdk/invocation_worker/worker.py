"""The worker: registers its service, claims invocations, runs methods, reports outcomes, shuts down."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quarterdeck import __version__
from quarterdeck.client.api import build_path
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Problem
from quarterdeck.sdk.invocation_worker.claims import Claimer
from quarterdeck.sdk.invocation_worker.in_flight import HeldLease, InFlight, Limits, split_batches
from quarterdeck.sdk.invocation_worker.methods import Context, Function, Methods, build_failure
from quarterdeck.sdk.invocation_worker.reports import Reporter
from quarterdeck.sdk.options import ServiceOptions
from quarterdeck.sdk.types import Completion, Lease, Service, Token
from quarterdeck.sdk.worker_core.signals import run_until_signal
from quarterdeck.sdk.worker_core.threads import DaemonThreadPool

log = logging.getLogger("quarterdeck.sdk.worker")
F = TypeVar("F", bound=Function)
HEARTBEAT_SECONDS = 30.0
FINAL_REPORT_SECONDS = 5.0
"""Time after the grace period to give back running leases and report outcomes."""
PULL_ENDPOINT_BASE = "http://worker.invalid"
"""A service needs an endpoint URL. For a pull service it is only an identifier: `.invalid` never resolves."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The service that a worker registers. Workers that register the same service share its invocations."""

    application_id: str
    endpoint_url: str | None = None
    """Default: one URL per application, so that all its workers serve the same service."""
    agent_id: str | None = None
    """The id of a session. The registration ends with that session."""
    described: ServiceOptions = field(default_factory=lambda: ServiceOptions())
    """Additional service fields."""


class Worker:
    """Implements the methods of a service with Python functions.

    worker = Worker(Quarterdeck.connect(), "summariser")

    @worker.method()
    async def summarise(params: Text, context: Context) -> Summary: ...

    worker.main()
    """

    def __init__(
        self,
        client: Quarterdeck,
        service: str | Offer | Service,
        *,
        concurrency: int = 16,
        prefetch: int | None = None,
        grace: float = 30.0,
    ) -> None:
        """Create a worker.

        `service`: an application id, an `Offer` with more details, or a service that is already registered.
        `concurrency`: the maximum number of methods that run at once.
        `prefetch`: leases that may be held in addition to the running ones. Default: `concurrency`.
        `grace`: seconds that running methods have to finish when the worker stops.
        """
        if concurrency < 1:
            raise ValueError("concurrency must be at least 1")
        self._client = client
        self._offer = Offer(service) if isinstance(service, str) else service
        self._grace = grace
        self._methods = Methods()
        self._threads = DaemonThreadPool(concurrency)
        limits = Limits(concurrency, concurrency if prefetch is None else prefetch)
        self._in_flight = InFlight(limits, self._run_method)
        self._reporter = Reporter(client.invocations, self._on_reported)
        self._claimer = Claimer(client.invocations, self._in_flight, self._register)
        self._stopping = asyncio.Event()
        self._registered = asyncio.Event()
        self._service: Service | None = None

    def method(self, name: str | None = None) -> Callable[[F], F]:
        """Declare a function as a method named `name`. Default: the function's name.

        The function gets the params, converted to the annotated type, and a `Context` if it has a second parameter.
        Coroutine functions run on the event loop, plain functions in threads.
        """

        def decorator(function: F) -> F:
            self._methods.add(name or function.__name__, function)
            return function

        return decorator

    # -- run and stop ------------------------------------------------------------------------------------------------

    def main(self) -> None:
        """Serve until SIGTERM or SIGINT, for a program that does nothing else. A second signal stops immediately."""
        asyncio.run(run_until_signal(self, self._client))

    async def run(self) -> None:
        """Serve until `stop` is called or this call is cancelled. Raises if the server refuses this worker."""
        loop = asyncio.get_running_loop()
        claim_task = loop.create_task(self._claimer.run(self._add_leases))
        other_tasks = [
            loop.create_task(self._in_flight.keep_alive(self._client.invocations)),
            loop.create_task(self._reporter.run()),
            loop.create_task(self._send_heartbeats()),
            loop.create_task(self._stopping.wait()),
        ]
        try:
            await asyncio.wait([claim_task, *other_tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._shut_down(claim_task)
            await _cancel_and_wait([*other_tasks])
            self._threads.close()
        for error in [task.exception() for task in (claim_task, *other_tasks) if not task.cancelled()]:
            if error is not None:
                raise error

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stop claiming, finish the running methods, and give back the other leases. Call this on the event loop."""
        self._stopping.set()

    async def until_registered(self) -> Service:
        """Wait until the service is registered, and return it."""
        await self._registered.wait()
        assert self._service is not None
        return self._service

    async def _shut_down(self, claim_task: asyncio.Task[None]) -> None:
        await _cancel_and_wait([claim_task])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                with _log_problems("could not give back the leases of the last claim"):
                    await self._claimer.release_pending_claim()
                await self._release(self._in_flight.drop_waiting())
                await self._in_flight.wait_until_none_running()
                await self._reporter.wait_until_sent()
                return
        log.warning("%d methods did not end within %g s; giving them back", self._in_flight.running_count, self._grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_REPORT_SECONDS):
                await self._release(self._in_flight.drop_running())
                await self._reporter.wait_until_sent()

    async def _release(self, tokens: Sequence[Token]) -> None:
        for batch in split_batches(tokens):
            with _log_problems(f"could not give back {len(batch)} leases, which will expire"):
                await self._client.invocations.release(batch)

    # -- registration, methods, heartbeat ----------------------------------------------------------------------------

    async def _register(self) -> tuple[str, bool]:
        offer = self._offer
        if isinstance(offer, Service):
            self._service = offer
        else:
            options: ServiceOptions = {
                "capabilities": [*self._methods],
                "framework_name": "quarterdeck-sdk",
                "framework_version": __version__,
                "health": "healthy",
                "delivery": "pull",
                **offer.described,
            }
            url = offer.endpoint_url or PULL_ENDPOINT_BASE + build_path(offer.application_id)
            self._service = await self._client.services.register(
                offer.application_id, url, agent_id=offer.agent_id, **options
            )
        self._registered.set()
        log.info(
            "serving %s of application %s as service %s",
            ", ".join(self._methods),
            self._service.application_id,
            self._service.id,
        )
        return self._service.id, self._service is not offer

    def _add_leases(self, leases: Sequence[Lease]) -> None:
        self._in_flight.add(HeldLease(lease, Context(lease, self._client)) for lease in leases)

    async def _run_method(self, held: HeldLease) -> None:
        try:
            completion = await self._methods.run(held.context, self._threads)
        except asyncio.CancelledError:
            # Either the worker dropped the lease, or the method canceled itself, which counts as a failure.
            completion = build_failure(held.lease, "method_failed", "the method was canceled", type="CancelledError")
        if not held.is_dropped:
            self._reporter.add(completion)

    def _on_reported(self, completion: Completion) -> None:
        self._in_flight.remove(completion.attempt_token)

    async def _send_heartbeats(self) -> None:
        service = await self.until_registered()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with _log_problems("could not send the service's heartbeat", logging.DEBUG):
                await self._client.services.heartbeat(
                    service.id, health="healthy", active_invocations=self._in_flight.running_count
                )


@contextlib.contextmanager
def _log_problems(message: str, level: int = logging.WARNING) -> Iterator[None]:
    """Log a `Problem` instead of raising it, for calls whose failure the worker tolerates."""
    try:
        yield
    except Problem as problem:
        log.log(level, "%s: %s", message, problem.detail)


async def _cancel_and_wait(tasks: Iterable[asyncio.Task[object]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
