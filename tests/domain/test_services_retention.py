"""Services that went long ago are forgotten, once nothing that is kept names them; on both engines."""

from __future__ import annotations

import pytest

from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.services.model import DeleteExpired, DeleteResult, Service, ServiceSettings
from quarterdeck.domain.services.sweeps import RETENTION, sweeps
from quarterdeck.engine.sweeps import SweepRunner
from tests.support.invocations import register_service
from tests.support.runtime import RuntimeHarness
from tests.support.services import ENDPOINT_URL, ServiceHarness

LONG_AGO = 1


async def sweep(keel: RuntimeHarness, serving: ServiceHarness) -> int:
    made = sweeps(
        keel.cross_zone_engine,
        invocations.find_unreferenced_services,
        serving.delete_lane.submit,
        ServiceSettings(),
        1_000,
    )
    return await SweepRunner(made).run_now(RETENTION)


async def gone(keel: RuntimeHarness, serving: ServiceHarness, service: Service) -> None:
    """Unregistered, long ago."""
    await serving.unregister(service)
    keel.database.execute("update agent_services set unregistered_at = ? where id = ?", LONG_AGO, service.id)


def kept(keel: RuntimeHarness) -> set[object]:
    return {row[0] for row in keel.database.execute("select id from agent_services")}


async def test_what_went_long_ago_is_forgotten_and_nothing_else(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    there, lately, old = [await service_harness.register_service(endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(3)]
    await service_harness.unregister(lately)
    await gone(runtime, service_harness, old)
    assert await sweep(runtime, service_harness) == 1
    assert kept(runtime) == {there.id, lately.id}
    assert await sweep(runtime, service_harness) == 0
    again = await service_harness.register(endpoint_url=f"{ENDPOINT_URL}/2")
    assert again.created
    assert again.service.id != old.id


async def test_a_service_outlives_its_invocations(runtime: RuntimeHarness, service_harness: ServiceHarness) -> None:
    called = await register_service(runtime)
    row = await called.create()
    [service] = await service_harness.list_services()
    await gone(runtime, service_harness, service)
    assert await sweep(runtime, service_harness) == 0
    assert kept(runtime) == {row.service_id}
    runtime.database.execute("delete from agent_invocations")
    assert await sweep(runtime, service_harness) == 1
    assert kept(runtime) == set()


@pytest.mark.parametrize("leaves_again", [False, True])
async def test_what_came_back_after_it_was_found_stays(
    runtime: RuntimeHarness, service_harness: ServiceHarness, leaves_again: bool
) -> None:
    service = await service_harness.register_service()
    await gone(runtime, service_harness, service)
    await service_harness.register()
    if leaves_again:
        await service_harness.unregister(service)
    outcome = await service_harness.delete_lane.submit(DeleteExpired(service.zone_id, service.id, LONG_AGO + 1))
    assert outcome == DeleteResult(is_deleted=False)
    assert kept(runtime) == {service.id}
