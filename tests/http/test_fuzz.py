"""Whatever a body holds, both engines' servers give the same answer to it, and it is never a 5xx."""

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
    """Mostly spawns with something wrong; sometimes a spawn with a few bytes changed; sometimes mere bytes."""
    text = json.dumps(draw(FIELDS | JSON), ensure_ascii=draw(st.booleans()))
    raw = text.encode("utf-8", "surrogatepass")
    match draw(st.sampled_from(["as it is", "as it is", "changed", "cut", "noise"])):
        case "changed":
            place = draw(st.integers(0, max(0, len(raw) - 1)))
            return raw[:place] + draw(st.binary(max_size=3)) + raw[place + draw(st.integers(0, 3)) :]
        case "cut":
            return raw[: draw(st.integers(0, len(raw)))]
        case "noise":
            return draw(st.binary(max_size=64))
    return raw


class Twins:
    """The same zone on both engines."""

    def __init__(self, servers: list[ServerProcess]) -> None:
        self.zones = [asyncio.run(create_zone(server)) for server in servers]
        self.clients = [_client(zone) for zone in self.zones]

    def post(self, body: bytes) -> list[httpx.Response]:
        return [
            client.post(zone.sessions_path, content=body) for client, zone in zip(self.clients, self.zones, strict=True)
        ]

    def close(self) -> None:
        for client in self.clients:
            client.close()


def _client(zone: FreshZone) -> httpx.Client:
    headers = {"Authorization": f"Bearer {zone.token()}"}
    return httpx.Client(base_url=zone.server.url, headers=headers, trust_env=False, verify=False)


@pytest.fixture
def both_servers(sqlite_server: ServerProcess, postgres_server: ServerProcess) -> Iterator[Twins]:
    pair = Twins([sqlite_server, postgres_server])
    yield pair
    pair.close()


def without_what_differs(body: dict[str, Any]) -> dict[str, Any]:
    own = ("id", "agent_session_id", "root_id", "zone_id", "spawned_at", "expires_at", "created_at", "updated_at")
    return {name: value for name, value in body.items() if name not in (*own, "request_id")}


def test_both_engines_answer_any_body_alike_and_never_with_a_5xx(both_servers: Twins) -> None:
    spawns = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize="QD_ROUNDS" not in os.environ,
        suppress_health_check=list(HealthCheck),
    )
    @given(body=bodies())
    def ask(body: bytes) -> None:
        nonlocal spawns
        answers = both_servers.post(body)
        assert answers[0].status_code == answers[1].status_code, (answers[0].text, answers[1].text)
        if answers[0].status_code in (200, 201):
            spawns += answers[0].status_code == 201
            asked = json.loads(body)
            for answer in answers:
                assert answer.json()["metadata"] == asked.get("metadata", {}), "kept as it was sent"
        else:
            for answer in answers:
                assert answer.status_code in (400, 403, 404, 422), answer.text
                assert_problem(answer, answer.status_code)
        shown = [without_what_differs(answer.json()) for answer in answers]
        assert shown[0] == shown[1]

    ask()
    for zone in both_servers.zones:
        events = DirectDatabase(zone.server.launch.database_url).count("events", "zone_id = ?", zone.id)
        assert events == 1 + spawns, "what was refused wrote nothing"
