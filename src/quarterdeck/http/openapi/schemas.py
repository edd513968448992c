"""The types of the table as JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.routing import Route

Json = dict[str, object]
"""A JSON object that is being built."""
SCHEMA_REF_PREFIX = "#/components/schemas/"


class Problem(msgspec.Struct, frozen=True):
    """How every refusal and every fault looks: RFC 9457, with a code, and with what a refusal explains itself by."""

    type: Annotated[str, Meta(description="the code as a URN: urn:quarterdeck:problem:…")]
    title: Annotated[str, Meta(description="the kind of problem, in words")]
    status: Annotated[int, Meta(description="the HTTP status, again")]
    detail: Annotated[str, Meta(description="a sentence for people")]
    error: Annotated[str, Meta(description="the code: the stable word that programs match on")]
    request_id: Annotated[str, Meta(description="finds this request in the server's log")]
    field: Annotated[str, Meta(description="the path of what is wrong in the request")] | UnsetType = UNSET
    bound: Annotated[str, Meta(description="the limit that holds")] | UnsetType = UNSET
    limit: Annotated[int, Meta(description="how much it allows")] | UnsetType = UNSET
    used: Annotated[int, Meta(description="how much of it is used")] | UnsetType = UNSET
    frees: Annotated[str, Meta(description="what would free it")] | UnsetType = UNSET
    retry_after: Annotated[int, Meta(description="seconds after which asking again may help")] | UnsetType = UNSET


class Schemas:
    """Every type of a table, and the components they share."""

    def __init__(self, routes: Sequence[Route]) -> None:
        bodies: list[object] = [Problem]
        queries: list[object] = []
        for route in routes:
            bodies += [route.body, *_union_members(route.response), *_union_members(route.stream_event)]
            queries.append(route.query)
        types = _distinct([*bodies, *queries])
        type_schemas, components = msgspec.json.schema_components(
            types, schema_hook=_any_value_schema, ref_template=SCHEMA_REF_PREFIX + "{name}"
        )
        self._schemas: dict[object, Json] = dict(zip(types, type_schemas, strict=True))
        self.components: dict[str, Json] = components
        self._fields = {query: self.resolve(self._schemas[query]) for query in _distinct(queries)}
        # A query's struct has no place in a document that lists its fields one by one as parameters.
        for query in self._fields.keys() - set(_distinct(bodies)):
            self.components.pop(_component_name(self._schemas[query]), None)

    def schema_of(self, value_type: object) -> Json:
        """One of several, where a route answers with more than one type of document."""
        options = [self._schemas[member] for member in _union_members(value_type)]
        return options[0] if len(options) == 1 else {"anyOf": [*options]}

    def query_fields(self, query: object) -> tuple[dict[str, Json], Sequence[str]]:
        """The fields of a query's struct, and the names of those that are required."""
        schema = self._fields[query]
        properties, required = schema.get("properties"), schema.get("required")
        return (properties if isinstance(properties, dict) else {}, required if isinstance(required, list) else [])

    def resolve(self, schema: Json) -> Json:
        return self.components[_component_name(schema)] if "$ref" in schema else schema


def without_null(schema: Mapping[str, object]) -> Json:
    """The schema of a value that is either there or not: in a query string nobody writes null."""
    result = {name: value for name, value in schema.items() if name != "anyOf"}
    if result.get("default", UNSET) is None:
        del result["default"]
    options = schema.get("anyOf")
    if isinstance(options, list):
        non_null = [option for option in options if option != {"type": "null"}]
        result |= non_null[0] if len(non_null) == 1 else {"anyOf": non_null}
    return result


def _union_members(value_type: object) -> tuple[object, ...]:
    return get_args(value_type) if isinstance(value_type, UnionType) else (value_type,)


def _distinct(types: Iterable[object]) -> list[object]:
    return [value_type for value_type in dict.fromkeys(types) if value_type is not None]


def _component_name(schema: Json) -> str:
    return str(schema.get("$ref", "")).removeprefix(SCHEMA_REF_PREFIX)


def _any_value_schema(value_type: type) -> Json:
    # msgspec takes an empty answer for no answer, so a value without bounds gets at least a word.
    if value_type is object:
        return {"description": "any JSON value"}
    raise NotImplementedError
