"""Sink routes: for administrators only, also on a server without Redis."""

from __future__ import annotations

import pytest

from tests.support.server import ServerProcess
from tests.support.zone import FreshZone, assert_problem, json_object


async def test_server_without_redis_has_only_the_webhook_sink(server: ServerProcess) -> None:
    async with server.client() as admin:
        [sink] = json_object(await admin.get("/sinks"))["items"]
        assert (sink["name"], sink["is_configured"], sink["waiting"], sink["dead"]) == ("webhooks", True, 0, 0)
        assert_problem(await admin.get("/sinks/redis-streams"), 404, "sink_not_found")
        response = await admin.post("/sinks/redis-streams/requeue", json={"all": True})
        assert_problem(response, 404, "sink_not_found")


async def test_sink_routes_refuse_callers_without_the_administrator_scope(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.admin")) as client:
        for response in (
            await client.get("/sinks"),
            await client.get("/sinks/redis-streams"),
            await client.post("/sinks/redis-streams/requeue", json={"all": True}),
        ):
            assert_problem(response, 403, "missing_scope")


@pytest.mark.parametrize(
    "body", [{}, {"pos": 1, "all": True}, {"all": False}, {"pos": 0}, {"pos": -1}, {"pos": 2**63}, {"pos": "x"}]
)
async def test_invalid_requeue_body_is_400(server: ServerProcess, body: dict[str, object]) -> None:
    async with server.client() as admin:
        response = await admin.post("/sinks/redis-streams/requeue", json=body)
        assert response.status_code == 400, response.text
