"""A worker process ends even if a method never returns."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE

import pytest

from tests.sdk.fake_servers import sdk_client
from tests.support.child_processes import minimal_environment
from tests.support.zone import APP, FreshZone

TIMEOUT_SECONDS = 60.0
PROGRAM = """
import sys, threading
from quarterdeck.sdk import Quarterdeck, Worker

worker = Worker(Quarterdeck.connect(), "app", grace=float(sys.argv[1]))

@worker.method()
def forever() -> None:
    print("started", flush=True)
    threading.Event().wait()

worker.main()
"""


@pytest.mark.parametrize(("grace", "signals"), [(0.1, 1), (600.0, 2)], ids=["grace", "second-signal"])
async def test_grace_or_second_signal_ends_a_worker_with_a_blocked_method(
    zone: FreshZone, grace: float, signals: int
) -> None:
    settings = {"QD_URL": zone.server.url, "QD_TOKEN": zone.token(), "QD_ZONE": zone.id}
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, f"http://worker.invalid/{APP}")
        invocation = await qd.invocations.enqueue(service.id, "forever")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            PROGRAM,
            str(grace),
            stdout=PIPE,
            stderr=PIPE,
            env={**minimal_environment(), **settings},
        )
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                assert process.stdout is not None
                assert await process.stdout.readline() == b"started\n"
                process.send_signal(signal.SIGTERM)
                while signals > 1 and process.returncode is None:
                    # Repeated until the process ends: a signal is lost while the same signal is pending.
                    with contextlib.suppress(ProcessLookupError, TimeoutError):
                        process.send_signal(signal.SIGTERM)
                        await asyncio.wait_for(process.wait(), 0.2)
                await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        assert process.returncode == 0
        if signals == 1:
            left = await qd.invocations.get(invocation.id)
            assert (left.status, left.attempts) == ("pending", 0)
