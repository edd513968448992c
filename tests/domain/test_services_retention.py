"""Unregistered services are deleted after the retention period once no invocation refers to them, on both engines."""

from __future__ import annotations

import pytest

from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.services.model import DeleteResult, DeleteService, Service, ServiceSettings
from quarterdeck.domain.services.sweeps import RETENTION, sweeps
from quarterdeck.engine.sweeps import SweepRunner
from tests.support.invocations import register_service
from tests.support.runtime import RuntimeHarness
from tests.support.services import ENDPOINT_URL, ServiceHarness

LONG_AGO = 1


async def run_retention(runtime: RuntimeHarness, service_harness: ServiceHarness) -> int:
    sweep_list = sweeps(
        runtime.cross_zone_engine,
        invocations.find_unreferenced_services,
        service_harness.delete_lane.submit,
        ServiceSettings(),
        1_000,
    )
    return await SweepRunner(sweep_list).run_now(RETENTION)


async def unregister_long_ago(runtime: RuntimeHarness, service_harness: ServiceHarness, service: Service) -> None:
    """Unregister a service and date that before the retention period."""
    await service_harness.unregister(service)
    runtime.database.execute("update agent_services set unregistered_at = ? where id = ?", LONG_AGO, service.id)


def stored_ids(runtime: RuntimeHarness) -> set[object]:
    return {row[0] for row in runtime.database.execute("select id from agent_services")}


async def test_only_services_unregistered_before_the_retention_period_are_deleted(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    registered, recent, old = [
        await service_harness.register_service(endpoint_url=f"{ENDPOINT_URL}/{n}") for n in range(3)
    ]
    await service_harness.unregister(recent)
    await unregister_long_ago(runtime, service_harness, old)
    assert await run_retention(runtime, service_harness) == 1
    assert stored_ids(runtime) == {registered.id, recent.id}
    assert await run_retention(runtime, service_harness) == 0
    result = await service_harness.register(endpoint_url=f"{ENDPOINT_URL}/2")
    assert result.created
    assert result.service.id != old.id


async def test_service_is_kept_while_an_invocation_refers_to_it(
    runtime: RuntimeHarness, service_harness: ServiceHarness
) -> None:
    invocation_harness = await register_service(runtime)
    invocation = await invocation_harness.create()
    [service] = await service_harness.list_services()
    await unregister_long_ago(runtime, service_harness, service)
    assert await run_retention(runtime, service_harness) == 0
    assert stored_ids(runtime) == {invocation.service_id}
    runtime.database.execute("delete from agent_invocations")
    assert await run_retention(runtime, service_harness) == 1
    assert stored_ids(runtime) == set()


@pytest.mark.parametrize("unregisters_again", [False, True])
async def test_service_registered_again_after_the_sweep_found_it_is_kept(
    runtime: RuntimeHarness, service_harness: ServiceHarness, unregisters_again: bool
) -> None:
    service = await service_harness.register_service()
    await unregister_long_ago(runtime, service_harness, service)
    await service_harness.register()
    if unregisters_again:
        await service_harness.unregister(service)
    result = await service_harness.delete_lane.submit(DeleteService(service.zone_id, service.id, LONG_AGO + 1))
    assert result == DeleteResult(is_deleted=False)
    assert stored_ids(runtime) == {service.id}
