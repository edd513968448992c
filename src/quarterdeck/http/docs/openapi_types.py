"""The part of an OpenAPI description that the page needs, as types.

What is read here once, and checked while it is read, needs no checking where it is shown.
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
        """The component this refers to, if it refers to one."""
        return self.ref.rpartition("/")[2]


class Media(msgspec.Struct, frozen=True):
    schema: Schema = Schema()
    example: object = UNSET


class Content(msgspec.Struct, frozen=True):
    """A body that is asked for, or an answer."""

    ref: str = field(name="$ref", default="")
    description: str = ""
    content: dict[str, Media] = {}

    @property
    def media(self) -> Media | None:
        return next(iter(self.content.values()), None)


class Parameter(msgspec.Struct, frozen=True):
    ref: str = field(name="$ref", default="")
    name: str = ""
    place: str = field(name="in", default="")
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
        """What is needed, whichever way one says who one is."""
        named = (scope for wanted in self.security for scopes in wanted.values() for scope in scopes)
        return list(dict.fromkeys(named))


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


class Row(NamedTuple):
    """One route of the description."""

    method: str
    path: str
    operation: Operation


class Description(msgspec.Struct, frozen=True):
    info: Info
    paths: dict[str, dict[str, Operation]]
    tags: list[Tag] = []
    components: Components = Components()
    refusals: list[Refusal] = field(name="x-refusals", default=[])

    def rows(self) -> Iterator[Row]:
        for path, operations in self.paths.items():
            for method, operation in operations.items():
                yield Row(method.upper(), path, operation)

    def groups(self) -> list[tuple[Tag, list[Row]]]:
        """The routes by their first tag, in the order of the tags; those without one come last."""
        named = {tag.name: tag for tag in self.tags}
        found: dict[str, list[Row]] = {name: [] for name in named}
        for row in self.rows():
            found.setdefault(row.operation.tags[0] if row.operation.tags else "other", []).append(row)
        return [(named.get(name, Tag(name)), rows) for name, rows in found.items() if rows]

    def parameter(self, given: Parameter) -> Parameter:
        return self.components.parameters[given.ref.rpartition("/")[2]] if given.ref else given

    def schema(self, given: Schema) -> Schema:
        return self.components.schemas[given.name] if given.ref else given

    def problem_example(self) -> object | UnsetType:
        """A refusal as it looks, if the description shows one."""
        for answer in self.components.responses.values():
            if answer.media is not None and answer.media.example is not UNSET:
                return answer.media.example
        return UNSET


def read(description: Mapping[str, object]) -> Description:
    return msgspec.convert(description, Description)
