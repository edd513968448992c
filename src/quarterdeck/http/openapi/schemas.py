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
PLACE = "#/components/schemas/"


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
            bodies += [route.body, *_each(route.answer), *_each(route.streams)]
            queries.append(route.query)
        kinds = _distinct([*bodies, *queries])
        found, components = msgspec.json.schema_components(kinds, schema_hook=_free_form, ref_template=PLACE + "{name}")
        self._schemas: dict[object, Json] = dict(zip(kinds, found, strict=True))
        self.components: dict[str, Json] = components
        self._fields = {query: self.resolved(self._schemas[query]) for query in _distinct(queries)}
        # A query's struct has no place in a document that lists its fields one by one as parameters.
        for query in self._fields.keys() - set(_distinct(bodies)):
            self.components.pop(_name(self._schemas[query]), None)

    def of(self, kind: object) -> Json:
        """One of several, where a route answers with more than one type of document."""
        options = [self._schemas[each] for each in _each(kind)]
        return options[0] if len(options) == 1 else {"anyOf": [*options]}

    def fields(self, query: object) -> tuple[dict[str, Json], Sequence[str]]:
        """The fields of a query's struct, and the names of those that are required."""
        schema = self._fields[query]
        properties, required = schema.get("properties"), schema.get("required")
        return (properties if isinstance(properties, dict) else {}, required if isinstance(required, list) else [])

    def resolved(self, schema: Json) -> Json:
        return self.components[_name(schema)] if "$ref" in schema else schema


def without_null(schema: Mapping[str, object]) -> Json:
    """The schema of a value that is either there or not: in a query string nobody writes null."""
    kept = {name: value for name, value in schema.items() if name != "anyOf"}
    if kept.get("default", UNSET) is None:
        del kept["default"]
    options = schema.get("anyOf")
    if isinstance(options, list):
        real = [option for option in options if option != {"type": "null"}]
        kept |= real[0] if len(real) == 1 else {"anyOf": real}
    return kept


def _each(kind: object) -> tuple[object, ...]:
    return get_args(kind) if isinstance(kind, UnionType) else (kind,)


def _distinct(kinds: Iterable[object]) -> list[object]:
    return [kind for kind in dict.fromkeys(kinds) if kind is not None]


def _name(schema: Json) -> str:
    return str(schema.get("$ref", "")).removeprefix(PLACE)


def _free_form(kind: type) -> Json:
    # msgspec takes an empty answer for no answer, so a value without bounds gets at least a word.
    if kind is object:
        return {"description": "any JSON value"}
    raise NotImplementedError
