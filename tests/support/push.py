"""A harness for push delivery: a runtime with wake-ups, services with an endpoint, and the push worker."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence

from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.invocations.background.push_delivery import PushDeps, PushWorker
from quarterdeck.domain.invocations.model import Invocation, InvocationSettings
from quarterdeck.domain.invocations.rules.states import ENDED_STATES
from quarterdeck.domain.services.model import DeliveryMode, ServiceUpdate
from quarterdeck.domain.services.operations.register import Registrar
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, OutboundClient
from tests.support.builders import ZONE
from tests.support.eventually import eventually
from tests.support.invocations import InvocationHarness
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime
from tests.support.services import register_command

SECRET_DERIVER = secret_deriver(b"root of the push test secrets...")
_numbers = itertools.count(1)


class ScriptedResolver:
    """A resolver that returns each response once, and the last one from then on."""

    def __init__(self, *responses: Sequence[str]) -> None:
        self.responses = [*responses]
        self.lookups: list[tuple[str, int]] = []
        self.requesters: set[str] = set()

    async def __call__(self, host: str, port: int, requester: str) -> Sequence[str]:
        self.lookups.append((host, port))
        self.requesters.add(requester)
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]


class PushHarness:
    """The push worker of one process, with its runtime."""

    def __init__(self, runtime: RuntimeHarness) -> None:
        self.runtime = runtime
        self.wakeups = runtime.wakeups

    def build_deps(self, http_client: OutboundClient | None = None) -> PushDeps:
        runtime = self.runtime
        return PushDeps(
            runtime.engine,
            runtime.cross_zone_engine,
            self.wakeups,
            runtime.submit_invocation,
            http_client or OutboundClient(ALLOW_PRIVATE),
            SECRET_DERIVER,
        )

    @contextlib.asynccontextmanager
    async def run_worker(
        self, deps: PushDeps | None = None, grace_seconds: float = 0.0, **overrides: int
    ) -> AsyncIterator[PushWorker]:
        # No test waits for this interval: every push in a test follows a wake-up.
        settings = InvocationSettings(**{"claim_poll_ms": 60_000, **overrides})
        worker = PushWorker(deps or self.build_deps(), settings, grace_seconds)
        worker.start()
        try:
            yield worker
        finally:
            await worker.stop()

    async def register_service(
        self, url: str, zone_id: str = ZONE, delivery: DeliveryMode = DeliveryMode.PUSH
    ) -> InvocationHarness:
        """Register a new service at this endpoint."""
        command = register_command(
            endpoint_url=f"{url}?{next(_numbers)}", zone_id=zone_id, update=ServiceUpdate(delivery=delivery)
        )
        registrar = Registrar(private_allowed=True)
        [result] = await self.runtime.engine.transact(lambda tx: registrar.register(tx, [command]), zones=[zone_id])
        assert not isinstance(result, Exception), result
        return InvocationHarness(self.runtime, command.id, zone_id)


@contextlib.asynccontextmanager
async def open_push_harness(url: str, options: RuntimeOptions | None = None) -> AsyncIterator[PushHarness]:
    async with open_runtime(url, options) as runtime:
        await runtime.put_zone()
        yield PushHarness(runtime)


async def wait_until_ended(service: InvocationHarness, row: Invocation) -> Invocation:
    """Wait until the invocation has ended. Return the row."""

    async def has_ended() -> bool:
        return (await service.read(row)).status in ENDED_STATES

    await eventually(has_ended, f"the invocation {row.id} ended")
    return await service.read(row)
