"""Answers that never left the server: what they gave goes back."""

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
"""So many of them are more than any kernel keeps for a peer that does not read."""


async def test_a_claim_whose_worker_is_gone_before_its_answer_has_left_costs_no_attempt(zone: FreshZone) -> None:
    async with zone.client() as client:
        body = {"application_id": APP, "endpoint_url": "http://worker.invalid/"}
        service = (await client.post(f"{zone.path}/agent-services", json=body)).json()["id"]
        asked = {"service_id": service, "method": "m", "params": LARGE}
        for number in range(MANY):
            made = await client.post(f"{zone.path}/invocations", json=asked | {"idempotency_key": f"k{number}"})
            assert made.status_code == 201

        parts = urlsplit(zone.server.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        path = f"{zone.path}/services/{service}/claim"
        writer.write(build_request("POST", path, zone.token(), {"max": BULK_MAX}))
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert head.startswith(b"HTTP/1.1 200")
        RawConnection(reader, writer).reset()

        again: list[dict[str, Any]] = []

        async def are_given_again() -> bool:
            answer = await client.post(path, json={"max": BULK_MAX})
            again.extend(answer.json()["items"])
            return len(again) == MANY

        await eventually(are_given_again, "the leases went back")
        assert {lease["attempt"] for lease in again} == {1}


async def test_what_was_sent_is_not_taken_back_when_the_connection_ends(zone: FreshZone) -> None:
    async with zone.client() as client:
        body = {"application_id": APP, "endpoint_url": "http://worker.invalid/"}
        service = (await client.post(f"{zone.path}/agent-services", json=body)).json()["id"]
        asked = {"service_id": service, "method": "m", "params": LARGE, "idempotency_key": "k"}
        assert (await client.post(f"{zone.path}/invocations", json=asked)).status_code == 201

        path = f"{zone.path}/services/{service}/claim"
        for last in ({}, {"Connection": "close"}):
            connection = await RawConnection.open(zone.server.url)
            answer = await connection.send_and_read(
                build_request("POST", path, zone.token(), {"claim_id": "c"}, **last)
            )
            [lease] = answer.json()["items"]
            connection.reset()
        # By then the server has heard of the end: it answers in order.
        done = {"status": "succeeded", "attempt_token": lease["attempt_token"]}
        told = await client.post(f"{zone.path}/invocations/{lease['id']}/complete", json=done)
        assert (told.status_code, told.json()["attempts"]) == (200, 1)
