"""The TTL sweep: ends what has expired, with its subtree.

It only finds the sessions; the ending itself goes through the same lane as everybody's, under the zone's lock, so any
number of replicas may sweep at once: what one has ended, another finds already ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quarterdeck.core.errors import NotFound
from quarterdeck.domain.sessions import operations, rules
from quarterdeck.domain.sessions.model import Receipt, SessionSettings, Terminate
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.tx import Engine

TTL = "ttl"


def ttl_sweep(
    engine: Engine, terminate: Callable[[Terminate], Awaitable[Receipt]], settings: SessionSettings
) -> Sweep:
    async def run_once(batch: int) -> int:
        refs = await engine.read(lambda tx: operations.expired(tx, batch))
        endings = [terminate(Terminate(zone_id, session_id, rules.EXPIRED)) for zone_id, session_id in refs]
        done = await asyncio.gather(*endings, return_exceptions=True)
        for outcome in done:
            # Gone between finding and ending is what a sweep wants; anything else is worth a failed pass.
            if isinstance(outcome, BaseException) and not isinstance(outcome, NotFound):
                raise outcome
        return len(refs)

    return Sweep(TTL, settings.ttl_sweep_interval_ms, settings.ttl_sweep_batch, run_once)
