"""Schemathesis sends generated requests to every operation of the OpenAPI document. No response is a 5xx, and every
response is documented."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from tests.support.engine_marks import ON_SQLITE
from tests.support.rounds import ROUNDS
from tests.support.zone import FreshZone

EXAMPLES_PER_ROUTE = ROUNDS
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
STREAMS = ("/zones/{zone}/events", "/api/v1/fleets/{fleet}/timeline/live")
"""Paths that can answer with an endless stream."""


@ON_SQLITE
async def test_no_response_is_a_5xx_or_undocumented(zone: FreshZone) -> None:
    async with zone.server.client() as client:
        document = (await client.get("/openapi.json")).json()
    tested = await asyncio.to_thread(_fuzz_every_operation, document, zone)
    assert tested > 100


def _fuzz_every_operation(document: Mapping[str, object], zone: FreshZone) -> int:
    headers = {"authorization": f"Bearer {zone.token(LIFECYCLE, COORDINATOR_ADMIN)}"}
    tested = 0
    for found in schemathesis.openapi.from_dict(dict(document)).get_all_operations():
        operation = found.ok()  # type: ignore[union-attr]  # an unreadable operation fails here
        if operation.path in STREAMS:
            continue

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES_PER_ROUTE,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
            derandomize=True,
        )
        def send(case: Any) -> None:
            for part in (case.query, case.body):
                if isinstance(part, dict):
                    part.update({name: 0 for name in ("waitMs", "wait_ms") if name in part})
            case.call_and_validate(base_url=zone.server.url, headers=headers, checks=CHECKS)

        send()
        tested += 1
    return tested
