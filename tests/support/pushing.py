"""Pushing as tests write it: a keel whose commits wake, services with an endpoint, and the pusher of a process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.invocations.model import Invocation, InvocationSettings
from quarterdeck.domain.invocations.push_delivery import PushDeps, PushWorker
from quarterdeck.domain.invocations.rules.states import ENDED_STATES
from quarterdeck.domain.services.model import DeliveryMode, ServiceUpdate
from quarterdeck.domain.services.operations import Registrar
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, OutboundClient
from quarterdeck.engine.wakeups import Wakeups
from tests.support.asking import ZONE
from tests.support.calling import Calling
from tests.support.eventually import eventually
from tests.support.keel import Keel, Rigging, keel_on
from tests.support.serving import registering

SECRETS = secret_deriver(b"a root that only tests know of..")
_numbers = itertools.count(1)


class Names:
    """A resolver that gives each time what is next, and the last of it for ever after."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = [*answers]
        self.asked: list[tuple[str, int]] = []
        self.askers: set[str] = set()

    async def __call__(self, host: str, port: int, asker: str) -> Sequence[str]:
        self.asked.append((host, port))
        self.askers.add(asker)
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Process:
    """A process's share of the house, with what pushes in it."""

    def __init__(self, keel: Keel, wakes: Wakeups) -> None:
        self.keel = keel
        self.wakes = wakes

    def means(self, outward: OutboundClient | None = None) -> PushDeps:
        keel = self.keel
        return PushDeps(
            keel.engine,
            keel.everywhere,
            self.wakes,
            keel.invocations.submit,
            outward or OutboundClient(ALLOW_PRIVATE),
            SECRETS,
        )

    @contextlib.asynccontextmanager
    async def pushing(
        self, means: PushDeps | None = None, grace_seconds: float = 0.0, **told: int
    ) -> AsyncIterator[PushWorker]:
        # An interval that no test waits for: what is pushed in one was woken for.
        settings = InvocationSettings(**{"claim_poll_ms": 60_000, **told})
        pusher = PushWorker(means or self.means(), settings, grace_seconds)
        pusher.start()
        try:
            yield pusher
        finally:
            await pusher.stop()

    async def service(self, url: str, zone_id: str = ZONE, delivery: DeliveryMode = DeliveryMode.PUSH) -> Calling:
        """A service of its own at this endpoint."""
        ask = registering(
            endpoint_url=f"{url}?{next(_numbers)}", zone_id=zone_id, update=ServiceUpdate(delivery=delivery)
        )
        registrar = Registrar(private_allowed=True)
        [done] = await self.keel.engine.transact(lambda tx: registrar.register(tx, [ask]), zones=[zone_id])
        assert not isinstance(done, Exception), done
        return Calling(self.keel, ask.id, zone_id)


@contextlib.asynccontextmanager
async def process_on(url: str, rigging: Rigging | None = None) -> AsyncIterator[Process]:
    wakes = Wakeups()
    rigged = replace(rigging or Rigging(), after_commit=lambda events: wakes.notify())
    async with keel_on(url, rigged) as keel:
        await keel.zone()
        yield Process(keel, wakes)


async def ended(service: Calling, row: Invocation) -> Invocation:
    """The row, once it has come to rest."""

    async def has_ended() -> bool:
        return (await service.now(row)).status in ENDED_STATES

    await eventually(has_ended, f"the invocation {row.id} ended")
    return await service.now(row)
