"""Builds a plausible example for a schema.

Sources, in this order: the schema's `examples`, the typical value for the field's name, the default, the first enum
value, the constant, the type. Most ids are `EXAMPLE_ID`, so that an example is consistent. Optional fields without a
default are omitted, except `SHOWN_OPTIONAL_FIELDS`.
"""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.http.openapi.schemas import SCHEMA_REF_PREFIX, Json

EXAMPLE_ID = "0198f3a2-7c41-7b1e-9d52-3f6a8c0e41d7"
EXAMPLE_TIME = "2026-01-02T03:04:05.678Z"

TYPICAL_VALUES: Mapping[str, object] = {
    "zone": "default",
    "ZoneView.id": "default",
    "zone_id": "default",
    "application_id": "my-app",
    "actor": "my-app",
    "session_sid": "sid-1",
    "name": "Research",
    "kind": "instance",
    "status": "active",
    "to": "active",
    "KeyView.status": "live",
    "NewKeyView.status": "live",
    "NewKeyView.key": f"qd_default.{EXAMPLE_ID}.{'0' * 64}",
    "endpoint_url": "https://agents.example.com/research",
    "health": "healthy",
    "delivery": "pull",
    "protocol_versions": ["1.0"],
    "metadata_json": {"region": "eu"},
    "created_by": "local",
    "idempotency_key": "report-2026-01-02",
    "method": "summarise",
    "params": {"text": "hello"},
    "attempt_token": "q3Ml0cVtQv2mVZ0Jr0cS8w",
    "attemptToken": "q3Ml0cVtQv2mVZ0Jr0cS8w",
    "EnqueueBody.service_id": EXAMPLE_ID,
    "RequeueBody.all": True,
    "scopes": ["agent:lifecycle"],
    "reason": "requested",
    "type": "session.spawn",
    "id": EXAMPLE_ID,
    "root": EXAMPLE_ID,
    "subject": EXAMPLE_ID,
    "at": EXAMPLE_TIME,
    "expires_at": "2026-01-02T04:04:05.678Z",
    "capabilities": ["search"],
    "metadata": {"purpose": "nightly report"},
    "limits": {"max_depth": 10, "max_children": 10},
    "ceilings": {"max_depth": 100, "max_children": 10_000},
    "data": {"depth": 0},
    "pos": 42,
    "sessions": 3,
    "concurrent": 2,
    "workspaceId": "default",
    "MemberView.subject": "alice",
    "role": "MEMBER",
    "addedBy": "local",
    "title": "Write the report",
    "taskType": "research",
    "url": "https://hooks.example.com/quarterdeck",
    "Scope.scope": "workspace",
    "usd": 25.0,
    "asked": 1,
    "stopped": 1,
    "ttl_seconds": 3_600,
    "max_concurrent": 8,
}
SHOWN_OPTIONAL_FIELDS = frozenset(
    {"idempotency_key", "name", "quotas", "max_concurrent", "to", "title", "taskType", "attemptToken", "usd"}
)
"""Optional fields without a default that examples include, because some examples would be empty without them."""

_JSON_TYPE_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
NULL_SCHEMA = {"type": "null"}


class ExampleBuilder:
    """Builds examples from schemas that refer to each other."""

    def __init__(self, components: Mapping[str, Json]) -> None:
        self._components = components

    def build(self, schema: Mapping[str, object], name: str = "", ancestors: tuple[str, ...] = ()) -> object:
        """Build an example. `ancestors` are the enclosing components. A component inside itself becomes null."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            component = reference.removeprefix(SCHEMA_REF_PREFIX)
            if component in ancestors:
                return None
            return self.build(self._components[component], name, (*ancestors, component))
        examples, values = schema.get("examples"), schema.get("enum")
        if isinstance(examples, list) and examples:
            return examples[0]
        if (typical := _typical_value(name, ancestors)) is not None and _matches_schema(typical, schema):
            return typical
        if schema.get("default") is not None:
            return schema["default"]
        if isinstance(values, list) and values:
            return values[0]
        return schema["const"] if "const" in schema else self._build_by_type(schema, name, ancestors)

    def _build_by_type(self, schema: Mapping[str, object], name: str, ancestors: tuple[str, ...]) -> object:
        options, minimum = schema.get("anyOf"), schema.get("minimum")
        if isinstance(options, list):
            is_shown = name in SHOWN_OPTIONAL_FIELDS or NULL_SCHEMA not in options
            return self.build(options[0], name, ancestors) if is_shown else None
        match schema.get("type"):
            case "object":
                return self._build_object(schema, ancestors)
            case "array":
                return self._build_array(schema, ancestors)
            case "string":
                return "text"
            case "integer" | "number":
                return minimum if isinstance(minimum, int | float) else 0
            case "boolean":
                return False
            case "null":
                return None
        return {}

    def _build_array(self, schema: Mapping[str, object], ancestors: tuple[str, ...]) -> list[object]:
        items = schema.get("items")
        item = self.build(items, "", ancestors) if isinstance(items, dict) else None
        return [] if item is None else [item]

    def _build_object(self, schema: Mapping[str, object], ancestors: tuple[str, ...]) -> Json:
        fields, required = schema.get("properties"), schema.get("required")
        if not isinstance(fields, dict):
            return {}
        required_names = required if isinstance(required, list) else []
        return {
            name: self.build(field, name, ancestors)
            for name, field in fields.items()
            if name in required_names or name in SHOWN_OPTIONAL_FIELDS or field.get("default") is not None
        }


def _typical_value(name: str, ancestors: tuple[str, ...]) -> object:
    """The typical value of a field with this name. A value for the component takes precedence over a general one."""
    for key in (f"{ancestors[-1]}.{name}" if ancestors else name, name):
        if key in TYPICAL_VALUES:
            return TYPICAL_VALUES[key]
    if name.endswith(("_id", "Id")) and name != "parent_id":
        return EXAMPLE_ID
    return EXAMPLE_TIME if name.endswith(("_at", "At")) else None


def _matches_schema(value: object, schema: Mapping[str, object]) -> bool:
    """Whether a typical value fits the schema. False for `anyOf`, whose example `_build_by_type` chooses."""
    values = schema.get("enum")
    if isinstance(values, list):
        return value in values
    if "properties" in schema:
        return False
    if "type" in schema:
        return schema["type"] == _JSON_TYPE_NAMES[type(value)]
    return "anyOf" not in schema and "const" not in schema
