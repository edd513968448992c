"""The request bodies of the measurements, each of 200 bytes of JSON, and the rows that a spawn stores."""

from __future__ import annotations

import msgspec

from bench.child_types import NUMBER_PLACEHOLDER
from bench.load import Requests
from quarterdeck.domain.sessions.rules.admission import limits_json
from quarterdeck.domain.zones.model import CEILINGS, Limits

BODY_BYTES = 200
APPLICATION = "bench"
METHOD = "echo"
CAPABILITIES = ["search", "summarise"]
TTL_SECONDS = 86_400


def _pad_body(body: dict[str, object], filler: dict[str, object]) -> str:
    filler["note"] = ""
    filler["note"] = "x" * (BODY_BYTES - len(msgspec.json.encode(body)))
    return msgspec.json.encode(body).decode()


def spawn_body() -> str:
    metadata: dict[str, object] = {"task": "bench"}
    body: dict[str, object] = {
        "application_id": APPLICATION,
        "capabilities": CAPABILITIES,
        "ttl_seconds": TTL_SECONDS,
        "metadata": metadata,
    }
    return _pad_body(body, metadata)


def row_body() -> str:
    """JSON of the same size, for the controls without sessions."""
    row: dict[str, object] = {"task": "bench"}
    return _pad_body(row, row)


def spawn_requests(zones: list[str]) -> Requests:
    return Requests([f"/zones/{zone}/agents" for zone in zones], "POST", spawn_body())


def invocation_body(service_id: str) -> str:
    """An invocation of a service. Each request gets its own idempotency key."""
    params: dict[str, object] = {"task": "bench"}
    body: dict[str, object] = {
        "service_id": service_id,
        "method": METHOD,
        "idempotency_key": f"bench-{NUMBER_PLACEHOLDER}",
        "params": params,
    }
    return _pad_body(body, params)


def invocation_requests(zone: str, service_id: str) -> Requests:
    return Requests([f"/zones/{zone}/invocations"], "POST", invocation_body(service_id))


def task_body() -> str:
    context: dict[str, object] = {}
    body: dict[str, object] = {"title": "job", "taskType": "job", "inputContext": context}
    return _pad_body(body, context)


def message_body(from_agent_id: int, to: int | str) -> str:
    """A message to one member of a fleet, or to `*`."""
    body: dict[str, object] = {"from_agent_id": from_agent_id, "to_agent_id": to, "text": ""}
    body["text"] = "x" * (BODY_BYTES - len(msgspec.json.encode(body)))
    return msgspec.json.encode(body).decode()


def row_values(zone: str) -> dict[str, str]:
    """The values that a spawn with `spawn_body` stores, for code that writes such rows without a server."""
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
