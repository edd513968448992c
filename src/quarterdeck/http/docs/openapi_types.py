"""The part of an OpenAPI document that the page uses, as types.

The document is validated once, when it is converted to these types, so rendering needs no further checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType, field


class Schema(msgspec.Struct, frozen=True, rename="camel"):
    ref: str = field(name="$ref", default="")
    type: str | list[str] = ""
    title: str = ""
    description: str = ""
    format: str = ""
    pattern: str = ""
    enum: list[object] = []
    const: object = UNSET
    default: object = UNSET
    any_of: list[Schema] = []
    items: Schema | None = None
    properties: dict[str, Schema] = {}
    required: list[str] = []
    additional_properties: bool | Schema = True
    minimum: int | float | None = None
    maximum: int | float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None

    @property
    def name(self) -> str:
        """The name of the component that this schema refers to, if any."""
        return self.ref.rpartition("/")[2]


class Media(msgspec.Struct, frozen=True):
    schema: Schema = Schema()
    example: object = UNSET


class Content(msgspec.Struct, frozen=True):
    """A request body or a response."""

    ref: str = field(name="$ref", default="")
    description: str = ""
    content: dict[str, Media] = {}

    @property
    def media(self) -> Media | None:
        return next(iter(self.content.values()), None)


class Parameter(msgspec.Struct, frozen=True):
    ref: str = field(name="$ref", default="")
    name: str = ""
    location: str = field(name="in", default="")
    required: bool = False
    description: str = ""
    schema: Schema = Schema()
    example: object = UNSET


class Refusal(msgspec.Struct, frozen=True):
    error: str
    status: int | None = None
    meaning: str = ""


class Operation(msgspec.Struct, frozen=True, rename="camel"):
    operation_id: str
    responses: dict[str, Content]
    summary: str = ""
    description: str = ""
    tags: list[str] = []
    parameters: list[Parameter] = []
    request_body: Content | None = None
    security: list[dict[str, list[str]]] = []
    refusals: list[Refusal] = field(name="x-refusals", default=[])

    @property
    def scopes(self) -> list[str]:
        """The scopes that a caller needs, whichever kind of credential it sends."""
        all_scopes = (scope for requirement in self.security for scopes in requirement.values() for scope in scopes)
        return list(dict.fromkeys(all_scopes))


class Tag(msgspec.Struct, frozen=True):
    name: str
    description: str = ""


class Info(msgspec.Struct, frozen=True):
    title: str
    version: str
    description: str = ""


class Components(msgspec.Struct, frozen=True):
    schemas: dict[str, Schema] = {}
    parameters: dict[str, Parameter] = {}
    responses: dict[str, Content] = {}


class RouteEntry(NamedTuple):
    method: str
    path: str
    operation: Operation


class ApiDescription(msgspec.Struct, frozen=True):
    info: Info
    paths: dict[str, dict[str, Operation]]
    tags: list[Tag] = []
    components: Components = Components()
    refusals: list[Refusal] = field(name="x-refusals", default=[])

    def routes(self) -> Iterator[RouteEntry]:
        for path, operations in self.paths.items():
            for method, operation in operations.items():
                yield RouteEntry(method.upper(), path, operation)

    def groups(self) -> list[tuple[Tag, list[RouteEntry]]]:
        """The routes grouped by their first tag, in the order of the tags. Routes without a tag come last."""
        tags_by_name = {tag.name: tag for tag in self.tags}
        routes_by_tag: dict[str, list[RouteEntry]] = {name: [] for name in tags_by_name}
        for route in self.routes():
            routes_by_tag.setdefault(route.operation.tags[0] if route.operation.tags else "other", []).append(route)
        return [(tags_by_name.get(name, Tag(name)), routes) for name, routes in routes_by_tag.items() if routes]

    def resolve_parameter(self, parameter: Parameter) -> Parameter:
        return self.components.parameters[parameter.ref.rpartition("/")[2]] if parameter.ref else parameter

    def resolve_schema(self, schema: Schema) -> Schema:
        return self.components.schemas[schema.name] if schema.ref else schema

    def problem_example(self) -> object | UnsetType:
        """The example of a problem, if the document has one."""
        for response in self.components.responses.values():
            if response.media is not None and response.media.example is not UNSET:
                return response.media.example
        return UNSET


def parse_description(description: Mapping[str, object]) -> ApiDescription:
    return msgspec.convert(description, ApiDescription)
