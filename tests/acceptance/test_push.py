"""Push delivery of invocations with real servers and a real HTTP endpoint."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint, json_response, run_endpoint
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object

ENDED = {"succeeded", "failed", "timed_out", "canceled", "dead"}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
async def receiver() -> AsyncIterator[HttpEndpoint]:
    async with run_endpoint() as endpoint:
        yield endpoint


def with_private_addresses(launch: Launch, **settings: str) -> Launch:
    return launch.with_environment(QD_PUSH_PRIVATE_ADDRESSES="true", QD_DEADLINE_SWEEP_INTERVAL_MS="100", **settings)


class PushedService:
    """A zone and a service in it with push delivery."""

    def __init__(self, zone: FreshZone, registered: dict[str, Any]) -> None:
        self.zone = zone
        self.service = str(registered["id"])
        self.secret = str(registered["secret"])

    def client(self) -> httpx.AsyncClient:
        return self.zone.client(self.zone.token(LIFECYCLE, COORDINATOR_ADMIN))

    async def call(self, key: str = "k", **fields: object) -> str:
        body = {"service_id": self.service, "idempotency_key": key, "method": "m", "params": [1], **fields}
        async with self.client() as client:
            response = await client.post(f"{self.zone.path}/invocations", json=body, headers={"traceparent": TRACE})
        assert response.status_code == 201, response.text
        return str(json_object(response)["id"])

    async def wait_until_ended(self, invocation: str, server: ServerProcess | None = None) -> dict[str, Any]:
        """Wait until the invocation has ended and return it, as this server or another one shows it."""
        zone = FreshZone(server or self.zone.server, self.zone.id)
        content: dict[str, Any] = {}

        async def has_ended() -> bool:
            async with zone.client(zone.token(LIFECYCLE, COORDINATOR_ADMIN)) as client:
                content.update(json_object(await client.get(f"{zone.path}/invocations/{invocation}")))
            return content["status"] in ENDED

        await eventually(has_ended, "the invocation ended")
        return content


async def register_push_service(server: ServerProcess, url: str) -> PushedService:
    zone = await create_zone(server)
    body = {"application_id": "app", "endpoint_url": url, "delivery": "push"}
    async with zone.client() as client:
        response = await client.post(f"{zone.path}/agent-services", json=body)
    assert response.status_code == 201, response.text
    return PushedService(zone, json_object(response))


async def test_invocation_is_pushed_to_the_endpoint_signed_with_the_registered_secret(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    receiver.response = json_response(b'{"sum": 3}')
    server = await servers.start(with_private_addresses(launch))
    service = await register_push_service(server, receiver.url)
    invocation = await service.call()
    done = await service.wait_until_ended(invocation)
    assert (done["status"], done["result"], done["attempts"]) == ("succeeded", {"sum": 3}, 1)
    request = await receiver.wait_for_request()
    payload = Webhook(service.secret).verify(request.body, request.headers)
    assert (payload["id"], payload["service_id"], payload["params"]) == (invocation, service.service, [1])
    assert request.headers["traceparent"] == TRACE
    async with server.client() as admin:
        metrics = (await admin.get("/metrics")).text
    assert 'quarterdeck_pushes_total{name="succeeded"} 1.0' in metrics
    assert 'quarterdeck_pushes_under_way{name="invocations"} 0.0' in metrics
    assert service.secret.removeprefix("whsec_") not in server.log_text


async def test_push_of_a_killed_server_is_repeated_by_the_next_server(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    server = await servers.start(with_private_addresses(launch))
    service = await register_push_service(server, receiver.url)
    receiver.may_respond.clear()
    invocation = await service.call(timeout_ms=1_000, retry_policy={"backoff_ms": 0})
    await receiver.wait_for_request()
    server.kill()
    receiver.may_respond.set()
    receiver.response = json_response(b'"again"')
    other = await servers.start(with_private_addresses(launch))
    done = await service.wait_until_ended(invocation, other)
    assert (done["status"], done["result"], done["attempts"]) == ("succeeded", "again", 2)
    assert [json.loads(request.body)["attempt"] for request in receiver.requests] == [1, 2]
    first, second = (request.headers for request in receiver.requests)
    assert first["webhook-id"] == second["webhook-id"] == invocation


async def test_stopping_server_waits_for_the_push_response_and_stores_it(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    receiver.may_respond.clear()
    receiver.response = json_response(b'"in time"')
    server = await servers.start(with_private_addresses(launch))
    service = await register_push_service(server, receiver.url)
    invocation = await service.call()
    await receiver.wait_for_request()
    server.terminate()
    receiver.may_respond.set()
    assert await server.wait() == 0
    other = await servers.start(with_private_addresses(launch))
    done = await service.wait_until_ended(invocation, other)
    assert (done["result"], done["attempts"]) == ("in time", 1)


async def test_stopping_server_waits_no_longer_than_its_grace_period(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    receiver.may_respond.clear()
    server = await servers.start(with_private_addresses(launch, QD_SHUTDOWN_GRACE_MS="200"))
    service = await register_push_service(server, receiver.url)
    await service.call(timeout_ms=900_000)
    await receiver.wait_for_request()
    assert await server.stop() == 0
    assert "canceled 1 pushes at shutdown" in server.log_text


async def test_private_endpoint_cannot_be_registered_without_the_setting(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    zone = await create_zone(await servers.start(launch))
    async with zone.client() as client:
        for url in (receiver.url, f"http://2130706433:{receiver.port}/", f"http://[::ffff:7f00:1]:{receiver.port}/"):
            body = {"application_id": "app", "endpoint_url": url, "delivery": "push"}
            response = await client.post(f"{zone.path}/agent-services", json=body)
            assert_problem(response, 400, "invalid_endpoint_url")
    assert receiver.connections == 0


async def test_private_endpoint_is_not_called_after_the_setting_is_removed(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    server = await servers.start(with_private_addresses(launch))
    service = await register_push_service(server, receiver.url)
    await server.stop()
    receiver.connections = 0
    service.zone = FreshZone(await servers.start(launch), service.zone.id)
    done = await service.wait_until_ended(await service.call(retry_policy={"max_attempts": 2, "backoff_ms": 0}))
    assert (done["status"], done["attempts"], done["error"]["code"]) == ("dead", 2, "push_refused")
    assert receiver.connections == 0
