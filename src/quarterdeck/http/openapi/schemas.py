"""JSON Schemas for the types that the routes use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import UnionType
from typing import Annotated, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.routing import Route

Json = dict[str, object]
"""A JSON object under construction."""
SCHEMA_REF_PREFIX = "#/components/schemas/"
_PAGE_COMPONENT = re.compile(r"(?:Camel)?Page_(\w+)_")
_PAGE_NAMES = {"CoordinatorLogView": "CoordinatorLogs", "TimelineEntryView": "TimelineView"}
"""Pages whose names do not follow the rule of `_page_name`."""


class Problem(msgspec.Struct, frozen=True):
    """The body of every error response: RFC 9457, with an error code and details of the error."""

    type: Annotated[str, Meta(description="the error code as a URN: urn:quarterdeck:problem:…")]
    title: Annotated[str, Meta(description="a short summary of the type of problem")]
    status: Annotated[int, Meta(description="the HTTP status")]
    detail: Annotated[str, Meta(description="an explanation for people")]
    error: Annotated[str, Meta(description="the stable error code, for programs to match on")]
    request_id: Annotated[str, Meta(description="identifies the request in the server's log")]
    field: Annotated[str, Meta(description="the path of the invalid field in the request")] | UnsetType = UNSET
    bound: Annotated[str, Meta(description="the name of the limit that was reached")] | UnsetType = UNSET
    limit: Annotated[int, Meta(description="the value of the limit")] | UnsetType = UNSET
    used: Annotated[int, Meta(description="how much of the limit is used")] | UnsetType = UNSET
    frees: Annotated[str, Meta(description="what would free capacity")] | UnsetType = UNSET
    retry_after: Annotated[int, Meta(description="seconds after which a retry may succeed")] | UnsetType = UNSET


class Schemas:
    """The schemas of all types that the routes use, and their shared components."""

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
        type_schemas, components = _name_pages(type_schemas, components)
        self._schemas: dict[object, Json] = dict(zip(types, type_schemas, strict=True))
        self.components: dict[str, Json] = components
        self._query_schemas = {query: self.resolve(self._schemas[query]) for query in _distinct(queries)}
        # The fields of a query are listed as parameters, so its struct is not a component.
        for query in self._query_schemas.keys() - set(_distinct(bodies)):
            self.components.pop(_component_name(self._schemas[query]), None)

    def schema_of(self, value_type: object) -> Json:
        """The schema of a type. A union becomes `anyOf`."""
        options = [self._schemas[member] for member in _union_members(value_type)]
        return options[0] if len(options) == 1 else {"anyOf": [*options]}

    def query_fields(self, query: object) -> tuple[dict[str, Json], Sequence[str]]:
        """The fields of a query, and the names of the required fields."""
        schema = self._query_schemas[query]
        properties, required = schema.get("properties"), schema.get("required")
        return (properties if isinstance(properties, dict) else {}, required if isinstance(required, list) else [])

    def resolve(self, schema: Json) -> Json:
        return self.components[_component_name(schema)] if "$ref" in schema else schema


def without_null(schema: Mapping[str, object]) -> Json:
    """The schema without null: a query parameter is present or absent, but never null."""
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


def _name_pages(
    type_schemas: Iterable[Json], components: Mapping[str, Json]
) -> tuple[tuple[Json, ...], dict[str, Json]]:
    """Replace the generated names of pages: `Page[ServiceView]` becomes `ServiceList`."""
    names = {name: _page_name(match[1]) for name in components if (match := _PAGE_COMPONENT.fullmatch(name))}
    for name, page_name in names.items():
        components[name]["title"] = page_name
    # A page is always a whole response, so no component refers to one.
    refs: dict[str, Json] = {name: {"$ref": SCHEMA_REF_PREFIX + page_name} for name, page_name in names.items()}
    return (
        tuple(refs.get(_component_name(schema), schema) for schema in type_schemas),
        {names.get(name, name): schema for name, schema in components.items()},
    )


def _page_name(view_name: str) -> str:
    return _PAGE_NAMES.get(view_name, view_name.removesuffix("View") + "List")


def _any_value_schema(value_type: type) -> Json:
    # msgspec treats an empty schema as missing, so the schema for `object` has at least a description.
    if value_type is object:
        return {"description": "any JSON value"}
    raise NotImplementedError
