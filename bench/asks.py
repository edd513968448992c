"""What is measured: a spawn and a call of 200 bytes of JSON, and what becomes of them."""

from __future__ import annotations

import msgspec

from bench.load import Requests
from bench.orders import NUMBER
from quarterdeck.domain.sessions.rules.admission import limits_json
from quarterdeck.domain.zones.model import CEILINGS, Limits

BODY_BYTES = 200
APPLICATION = "bench"
METHOD = "echo"
CAPABILITIES = ["search", "summarise"]
TTL_SECONDS = 86_400


def _padded(make: dict[str, object], note: dict[str, object]) -> str:
    note["note"] = ""
    note["note"] = "x" * (BODY_BYTES - len(msgspec.json.encode(make)))
    return msgspec.json.encode(make).decode()


def spawn_body() -> str:
    metadata: dict[str, object] = {"task": "bench"}
    asked: dict[str, object] = {
        "application_id": APPLICATION,
        "capabilities": CAPABILITIES,
        "ttl_seconds": TTL_SECONDS,
        "metadata": metadata,
    }
    return _padded(asked, metadata)


def row_body() -> str:
    """For the controls that know no sessions: as many bytes of JSON."""
    row: dict[str, object] = {"task": "bench"}
    return _padded(row, row)


def spawns(zones: list[str]) -> Requests:
    return Requests([f"/zones/{zone}/agents" for zone in zones], "POST", spawn_body())


def call_body(service_id: str) -> str:
    """A call of a service; each that is sent has a key of its own."""
    params: dict[str, object] = {"task": "bench"}
    asked: dict[str, object] = {
        "service_id": service_id,
        "method": METHOD,
        "idempotency_key": f"bench-{NUMBER}",
        "params": params,
    }
    return _padded(asked, params)


def calls(zone: str, service_id: str) -> Requests:
    return Requests([f"/zones/{zone}/invocations"], "POST", call_body(service_id))


def task_body() -> str:
    """A task, as small as the others."""
    given: dict[str, object] = {}
    asked: dict[str, object] = {"title": "job", "taskType": "job", "inputContext": given}
    return _padded(asked, given)


def message_body(from_agent_id: int, to: int | str) -> str:
    """A message to one member of a fleet, or to `*`."""
    asked: dict[str, object] = {"from_agent_id": from_agent_id, "to_agent_id": to, "text": ""}
    asked["text"] = "x" * (BODY_BYTES - len(msgspec.json.encode(asked)))
    return msgspec.json.encode(asked).decode()


def row_values(zone: str) -> dict[str, str]:
    """What a spawn by that body stores, for the control that stores it without a server."""
    body: dict[str, object] = msgspec.json.decode(spawn_body())
    event = {
        "application_id": APPLICATION,
        "parent_id": None,
        "root_id": "0" * 36,
        "session_sid": "local",
        "depth": 0,
        "expires_at": 10**12,
    }
    return {
        "zone": zone,
        "application": APPLICATION,
        "capabilities": msgspec.json.encode(body["capabilities"]).decode(),
        "metadata": msgspec.json.encode(body["metadata"]).decode(),
        "limits": limits_json(Limits(**CEILINGS)),
        "data": msgspec.json.encode(event).decode(),
    }
