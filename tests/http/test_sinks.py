"""Sinks over HTTP: for administrators, also at a server that has none."""

from __future__ import annotations

import pytest

from tests.support.server import ServerProcess
from tests.support.zone import FreshZone, assert_problem, json_object


async def test_a_server_without_redis_has_the_sink_of_webhooks_alone_and_says_so(server: ServerProcess) -> None:
    async with server.client() as admin:
        [own] = json_object(await admin.get("/sinks"))["items"]
        assert (own["name"], own["is_configured"], own["waiting"], own["dead"]) == ("webhooks", True, 0, 0)
        assert_problem(await admin.get("/sinks/redis-streams"), 404, "sink_not_found")
        answer = await admin.post("/sinks/redis-streams/requeue", json={"all": True})
        assert_problem(answer, 404, "sink_not_found")


async def test_whoever_holds_no_more_than_a_zone_is_told_nothing_of_sinks(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.admin")) as client:
        for answer in (
            await client.get("/sinks"),
            await client.get("/sinks/redis-streams"),
            await client.post("/sinks/redis-streams/requeue", json={"all": True}),
        ):
            assert_problem(answer, 403, "missing_scope")


@pytest.mark.parametrize(
    "body", [{}, {"pos": 1, "all": True}, {"all": False}, {"pos": 0}, {"pos": -1}, {"pos": 2**63}, {"pos": "x"}]
)
async def test_what_is_to_be_requeued_must_be_said(server: ServerProcess, body: dict[str, object]) -> None:
    async with server.client() as admin:
        answer = await admin.post("/sinks/redis-streams/requeue", json=body)
        assert answer.status_code == 400, answer.text
