"""Every route is asked what its own description allows, and what it does not, as Schemathesis finds it: no answer is a
5xx, and none is one that the description does not name."""

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

EXAMPLES = ROUNDS
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LAST_LONG = ("/zones/{zone}/events", "/api/v1/fleets/{fleet}/timeline/live")
"""Streams, for whoever asks for one."""


@ON_SQLITE
async def test_no_answer_is_a_5xx_or_undocumented(zone: FreshZone) -> None:
    async with zone.server.client() as client:
        described = (await client.get("/openapi.json")).json()
    asked = await asyncio.to_thread(_ask_everything, described, zone)
    assert asked > 100


def _ask_everything(described: Mapping[str, object], zone: FreshZone) -> int:
    headers = {"authorization": f"Bearer {zone.token(LIFECYCLE, COORDINATOR_ADMIN)}"}
    asked = 0
    for found in schemathesis.openapi.from_dict(dict(described)).get_all_operations():
        operation = found.ok()  # type: ignore[union-attr]  # a description that cannot be read fails right here
        if operation.path in LAST_LONG:
            continue

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
            derandomize=True,
        )
        def ask(case: Any) -> None:
            for told in (case.query, case.body):
                if isinstance(told, dict):
                    told.update({name: 0 for name in ("waitMs", "wait_ms") if name in told})
            case.call_and_validate(base_url=zone.server.url, headers=headers, checks=CHECKS)

        ask()
        asked += 1
    return asked
