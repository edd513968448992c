"""What may be said beside what must be: the options of the calls that have many, each name as it is on the wire.

They are typed dictionaries, so that `spawn("app", parent_id=…)` is checked by whoever checks types; who does not check
is told by `told`, which knows the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypedDict

from quarterdeck.sdk.model import Delivery, Health


class SpawnOptions(TypedDict, total=False):
    session_sid: str | None
    parent_id: str | None
    kind: Literal["instance", "service", "ephemeral"]
    capabilities: Sequence[str]
    ttl_seconds: int
    metadata: Mapping[str, object]


class ServiceOptions(TypedDict, total=False):
    protocol_versions: Sequence[str]
    framework_name: str | None
    framework_version: str | None
    capabilities: Sequence[str]
    health: Health
    metadata: Mapping[str, object]
    delivery: Delivery


class RetryPolicy(TypedDict, total=False):
    max_attempts: int
    backoff_ms: int
    multiplier: float
    max_backoff_ms: int


class EnqueueOptions(TypedDict, total=False):
    metadata: Mapping[str, object]
    source_session_id: str | None
    target_session_id: str | None
    timeout_ms: int
    retry_policy: RetryPolicy


class DelegateOptions(TypedDict, total=False):
    scopes: Sequence[str]
    resource_id: str | None
    constraints: Mapping[str, object]
    expires_at: datetime
    ttl_seconds: int
    parent_edge_id: str | None


def told(kind: type, given: Mapping[str, object]) -> dict[str, object]:
    """What was said, without what was left open; a name that does not exist is a TypeError, as of any function."""
    unknown = given.keys() - kind.__annotations__.keys()
    if unknown:
        known = ", ".join(sorted(kind.__annotations__))
        raise TypeError(f"there is no {', '.join(sorted(unknown))} here; there is {known}")
    return {name: value for name, value in given.items() if value is not None}
