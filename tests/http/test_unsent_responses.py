"""Claims whose response never left the server are released."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

from quarterdeck.domain.invocations.model import BULK_MAX
from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, build_request
from tests.support.zone import APP, FreshZone

LARGE = "x" * 250_000
MANY = BULK_MAX
"""So many large invocations exceed what the kernel buffers for a peer that does not read."""


async def test_claim_whose_response_is_never_sent_costs_no_attempt(zone: FreshZone) -> None:
    async with zone.client() as client:
        body = {"application_id": APP, "endpoint_url": "http://worker.invalid/"}
        service = (await client.post(f"{zone.path}/agent-services", json=body)).json()["id"]
        invocation_body = {"service_id": service, "method": "m", "params": LARGE}
        for number in range(MANY):
            created = await client.post(
                f"{zone.path}/invocations", json=invocation_body | {"idempotency_key": f"k{number}"}
            )
            assert created.status_code == 201

        parts = urlsplit(zone.server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        path = f"{zone.path}/services/{service}/claim"
        writer.write(build_request("POST", path, zone.token(), {"max": BULK_MAX}))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert head.startswith(b"HTTP/1.1 200")
        RawConnection(reader, writer).reset()

        reclaimed: list[dict[str, Any]] = []

        async def are_claimable_again() -> bool:
            response = await client.post(path, json={"max": BULK_MAX})
            reclaimed.extend(response.json()["items"])
            return len(reclaimed) == MANY

        await eventually(are_claimable_again, "the attempts were released")
        assert {lease["attempt"] for lease in reclaimed} == {1}


async def test_sent_claim_is_not_released_when_the_connection_ends(zone: FreshZone) -> None:
    async with zone.client() as client:
        body = {"application_id": APP, "endpoint_url": "http://worker.invalid/"}
        service = (await client.post(f"{zone.path}/agent-services", json=body)).json()["id"]
        invocation_body = {"service_id": service, "method": "m", "params": LARGE, "idempotency_key": "k"}
        assert (await client.post(f"{zone.path}/invocations", json=invocation_body)).status_code == 201

        path = f"{zone.path}/services/{service}/claim"
        for headers in ({}, {"Connection": "close"}):
            connection = await RawConnection.open(zone.server.url)
            response = await connection.send_and_read(
                build_request("POST", path, zone.token(), {"claim_id": "c"}, **headers)
            )
            [lease] = response.json()["items"]
            connection.reset()
        # The server has seen the disconnect by now: it handles what it receives in order.
        result = {"status": "succeeded", "attempt_token": lease["attempt_token"]}
        completed = await client.post(f"{zone.path}/invocations/{lease['id']}/complete", json=result)
        assert (completed.status_code, completed.json()["attempts"]) == (200, 1)
