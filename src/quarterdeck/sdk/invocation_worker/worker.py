"""The worker: registers its service, claims invocations, runs methods, reports outcomes, shuts down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quarterdeck import __version__
from quarterdeck.client.api import build_path
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.invocation_worker.calls import CompletionOutbox, HeldLease, InvocationSource, build_lease_calls
from quarterdeck.sdk.invocation_worker.methods import Context, Function, Methods, build_failure
from quarterdeck.sdk.options import ServiceOptions
from quarterdeck.sdk.types import Completion, Lease, Service
from quarterdeck.sdk.worker_core.claims import Claimer
from quarterdeck.sdk.worker_core.in_flight import InFlight, Limits
from quarterdeck.sdk.worker_core.lease_keeper import LeaseKeeper, split_batches
from quarterdeck.sdk.worker_core.lifecycle import RegisteredWorker, Shutdown, cancel_and_wait, log_problems
from quarterdeck.sdk.worker_core.threads import DaemonThreadPool

log = logging.getLogger("quarterdeck.sdk.worker")
F = TypeVar("F", bound=Function)
HEARTBEAT_SECONDS = 30.0
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


class Worker(RegisteredWorker[Service]):
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
        super().__init__(client)
        self._offer = Offer(service) if isinstance(service, str) else service
        self._grace = grace
        self._methods = Methods()
        self._threads = DaemonThreadPool(concurrency)
        limits = Limits(concurrency, concurrency if prefetch is None else prefetch, mean_weight=0.2)
        self._in_flight = InFlight(limits, self._run_method, self._on_ended)
        self._outbox = CompletionOutbox(client.invocations, self._on_reported)
        self._lease_calls = build_lease_calls(client.invocations)
        self._lease_keeper = LeaseKeeper(self._in_flight, self._lease_calls)
        self._claimer = Claimer(InvocationSource(client.invocations, self._register), self._in_flight)

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

    async def run(self) -> None:
        """Serve until `stop` is called or this call is cancelled. Raises if the server refuses this worker."""
        loop = asyncio.get_running_loop()
        claim_task = loop.create_task(self._claimer.run(self._add_leases))
        other_tasks = [
            loop.create_task(self._lease_keeper.run()),
            loop.create_task(self._outbox.run()),
            loop.create_task(self._send_heartbeats()),
            loop.create_task(self._wait_until_stopped()),
        ]
        try:
            await asyncio.wait([claim_task, *other_tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel_and_wait([claim_task])
            shutdown = Shutdown("invocations", self._in_flight, self._give_back, self._outbox.wait_until_sent)
            await shutdown.run([self._claimer], self._grace)
            await cancel_and_wait(other_tasks)
            self._threads.close()
        for error in [task.exception() for task in (claim_task, *other_tasks) if not task.cancelled()]:
            if error is not None:
                raise error

    async def _give_back(self, leases: Sequence[HeldLease]) -> None:
        for batch in split_batches(leases):
            with log_problems(f"could not give back {len(batch)} leases, which will expire"):
                await self._lease_calls.release(batch)

    # -- registration, methods, heartbeat ----------------------------------------------------------------------------

    async def _register(self) -> tuple[str, bool]:
        service = await self._register_offer(self._offer) if isinstance(self._offer, Offer) else self._offer
        self._set_registered(service)
        methods = ", ".join(self._methods)
        log.info("serving %s of application %s as service %s", methods, service.application_id, service.id)
        return service.id, service is not self._offer

    async def _register_offer(self, offer: Offer) -> Service:
        options: ServiceOptions = {
            "capabilities": [*self._methods],
            "framework_name": "quarterdeck-sdk",
            "framework_version": __version__,
            "health": "healthy",
            "delivery": "pull",
            **offer.described,
        }
        url = offer.endpoint_url or PULL_ENDPOINT_BASE + build_path(offer.application_id)
        return await self._client.services.register(offer.application_id, url, agent_id=offer.agent_id, **options)

    def _add_leases(self, leases: Sequence[Lease]) -> None:
        newest = leases[-1]
        self._lease_keeper.set_lease_seconds((newest.lease_expires_at - newest.updated_at).total_seconds())
        self._in_flight.add(HeldLease(lease, Context(lease, self._client)) for lease in leases)

    async def _run_method(self, held: HeldLease) -> Completion:
        try:
            return await self._methods.run(held.context, self._threads)
        except asyncio.CancelledError:
            if held.is_dropped:
                raise
            # The method canceled itself, which counts as a failure.
            return build_failure(held.lease, "method_failed", "the method was canceled", type="CancelledError")

    def _on_ended(self, completion: Completion, held: HeldLease) -> None:
        self._outbox.add(completion)

    def _on_reported(self, completion: Completion) -> None:
        self._in_flight.remove(completion.attempt_token)

    async def _send_heartbeats(self) -> None:
        service = await self.until_registered()
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            with log_problems("could not send the service's heartbeat", logging.DEBUG):
                await self._client.services.heartbeat(
                    service.id, health="healthy", active_invocations=self._in_flight.running_count
                )
