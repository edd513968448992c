"""The servers of both engines give the same response to any body, and never a 5xx."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_problem, create_zone

EXAMPLES = 40 * ROUNDS
TEXT = st.text(max_size=12) | st.sampled_from(
    ["\x00", "\ud800", "\udfff", "\ufeff", "app\n", "null", "'; drop table zones"]
)
NUMBERS = (
    st.integers() | st.floats() | st.sampled_from([2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 1e308, -0.0])
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXT
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))
FIELDS = st.fixed_dictionaries(
    {"application_id": st.just(APP) | JSON},
    optional={
        "session_sid": TEXT | JSON,
        "parent_id": st.just("no-such-session") | JSON,
        "kind": st.sampled_from(["instance", "service", "ephemeral"]) | JSON,
        "capabilities": st.lists(TEXT, max_size=3) | JSON,
        "ttl_seconds": st.integers(-1, 86_402) | JSON,
        "metadata": st.dictionaries(TEXT, JSON, max_size=3) | JSON,
        "idempotency_key": TEXT | JSON,
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Mostly spawns with an invalid field, sometimes a spawn with changed bytes, sometimes random bytes."""
    text = json.dumps(draw(FIELDS | JSON), ensure_ascii=draw(st.booleans()))
    raw = text.encode("utf-8", "surrogatepass")
    match draw(st.sampled_from(["unchanged", "unchanged", "changed", "cut", "random"])):
        case "changed":
            position = draw(st.integers(0, max(0, len(raw) - 1)))
            return raw[:position] + draw(st.binary(max_size=3)) + raw[position + draw(st.integers(0, 3)) :]
        case "cut":
            return raw[: draw(st.integers(0, len(raw)))]
        case "random":
            return draw(st.binary(max_size=64))
    return raw


class ServerPair:
    """A new zone on the server of each engine."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self.zones = [asyncio.run(create_zone(server)) for server in servers]
        self.clients = [_create_client(zone) for zone in self.zones]

    def post(self, body: bytes) -> list[httpx.Response]:
        return [
            client.post(zone.sessions_path, content=body) for client, zone in zip(self.clients, self.zones, strict=True)
        ]

    def close(self) -> None:
        for client in self.clients:
            client.close()


def _create_client(zone: FreshZone) -> httpx.Client:
    headers = {"Authorization": f"Bearer {zone.token()}"}
    return httpx.Client(base_url=zone.server.url, headers=headers, trust_env=False, verify=False)


@pytest.fixture
def both_servers(sqlite_server: ServerProcess, postgres_server: ServerProcess) -> Iterator[ServerPair]:
    pair = ServerPair([sqlite_server, postgres_server])
    yield pair
    pair.close()


def without_generated_fields(body: dict[str, Any]) -> dict[str, Any]:
    generated = ("id", "agent_session_id", "root_id", "zone_id", "spawned_at", "expires_at", "created_at", "updated_at")
    return {name: value for name, value in body.items() if name not in (*generated, "request_id")}


def test_both_engines_give_the_same_response_to_any_body_and_never_a_5xx(both_servers: ServerPair) -> None:
    spawns = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize="QD_ROUNDS" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )
    @given(body=bodies())
    def check(body: bytes) -> None:
        nonlocal spawns
        responses = both_servers.post(body)
        assert responses[0].status_code == responses[1].status_code, (responses[0].text, responses[1].text)
        if responses[0].status_code in (200, 201):
            spawns += responses[0].status_code == 201
            sent = json.loads(body)
            for response in responses:
                assert response.json()["metadata"] == sent.get("metadata", {}), "metadata is stored as sent"
        else:
            for response in responses:
                assert response.status_code in (400, 403, 404, 422), response.text
                assert_problem(response, response.status_code)
        views = [without_generated_fields(response.json()) for response in responses]
        assert views[0] == views[1]

    check()
    for zone in both_servers.zones:
        events = DirectDatabase(zone.server.launch.database_url).count("events", "zone_id = ?", zone.id)
        assert events == 1 + spawns, "a refused request writes no event"
