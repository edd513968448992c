"""Services that went long ago are forgotten, once nothing that is kept names them; on both engines."""

from __future__ import annotations

import pytest

from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.services.model import DeleteExpired, DeleteResult, Service, ServiceSettings
from quarterdeck.domain.services.sweeps import RETENTION, sweeps
from quarterdeck.engine.sweeps import SweepRunner
from tests.support.calling import calling
from tests.support.keel import Keel
from tests.support.serving import URL, Serving

LONG_AGO = 1


async def sweep(keel: Keel, serving: Serving) -> int:
    made = sweeps(
        keel.everywhere, invocations.find_unreferenced_services, serving.forgets.submit, ServiceSettings(), 1_000
    )
    return await SweepRunner(made).run_now(RETENTION)


async def gone(keel: Keel, serving: Serving, service: Service) -> None:
    """Unregistered, long ago."""
    await serving.unregister(service)
    keel.side.run("update agent_services set unregistered_at = ? where id = ?", LONG_AGO, service.id)


def kept(keel: Keel) -> set[object]:
    return {row[0] for row in keel.side.run("select id from agent_services")}


async def test_what_went_long_ago_is_forgotten_and_nothing_else(keel: Keel, serving: Serving) -> None:
    there, lately, old = [await serving.make(endpoint_url=f"{URL}/{n}") for n in range(3)]
    await serving.unregister(lately)
    await gone(keel, serving, old)
    assert await sweep(keel, serving) == 1
    assert kept(keel) == {there.id, lately.id}
    assert await sweep(keel, serving) == 0
    again = await serving.register(endpoint_url=f"{URL}/2")
    assert again.created
    assert again.service.id != old.id


async def test_a_service_outlives_its_invocations(keel: Keel, serving: Serving) -> None:
    called = await calling(keel)
    row = await called.call()
    [service] = await serving.page()
    await gone(keel, serving, service)
    assert await sweep(keel, serving) == 0
    assert kept(keel) == {row.service_id}
    keel.side.run("delete from agent_invocations")
    assert await sweep(keel, serving) == 1
    assert kept(keel) == set()


@pytest.mark.parametrize("leaves_again", [False, True])
async def test_what_came_back_after_it_was_found_stays(keel: Keel, serving: Serving, leaves_again: bool) -> None:
    service = await serving.make()
    await gone(keel, serving, service)
    await serving.register()
    if leaves_again:
        await serving.unregister(service)
    outcome = await serving.forgets.submit(DeleteExpired(service.zone_id, service.id, LONG_AGO + 1))
    assert outcome == DeleteResult(is_deleted=False)
    assert kept(keel) == {service.id}
