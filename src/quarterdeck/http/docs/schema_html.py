"""How JSON, a type, a bound and a default are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from quarterdeck.http.docs.markup import EMPTY, Html, anchor, el, joined, link, prose
from quarterdeck.http.docs.openapi_types import Description, Schema

_TOKENS = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b')
UNBOUNDED = 2**63 - 1
"""A bound that only says that 64 bits must do; people need not read its nineteen digits."""


class Field(NamedTuple):
    """Something a caller may give, or will be given."""

    name: str
    schema: Schema
    required: bool = False
    says: str = ""


def pretty(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def json_block(value: object) -> Html:
    return el("pre", el("code", coloured(pretty(value))), tabindex="0")


def coloured(text: str) -> Html:
    """JSON with a class for each kind of word."""
    parts: list[str] = []
    end = 0
    for found in _TOKENS.finditer(text):
        string, colon, number, word = found.groups()
        kind = "k" if colon else "s" if string else "n" if number else "w"
        parts += [text[end : found.start()], el("span", string or number or word, class_=kind), colon or ""]
        end = found.end()
    return joined([*parts, text[end:]])


# -- fields ------------------------------------------------------------------------------------------------------


def field_list(fields: list[Field], whole: Description) -> Html:
    return el("dl", *(_field(field, whole) for field in fields), class_="fields")


def fields_of(schema: Schema) -> list[Field]:
    return [Field(name, inner, name in schema.required, inner.description) for name, inner in schema.properties.items()]


def _field(field: Field, whole: Description) -> Html:
    says = field.says or _says(field.schema)
    facts = [type_of(field.schema, whole), *bounds(field.schema)]
    if not says:
        # People are better served by words than by a pattern, where there are words.
        facts += patterns(field.schema)
    if field.schema.default not in (UNSET, None):
        facts.append(joined(["default ", el("code", msgspec.json.encode(field.schema.default).decode())]))
    badge = el("span", "required", class_="required") if field.required else EMPTY
    return el(
        "div",
        el("dt", el("code", field.name), badge),
        el("dd", el("span", joined(facts, " · "), class_="facts"), el("p", prose(_sentence(says))) if says else ""),
    )


def _says(schema: Schema) -> str:
    """A field that says nothing itself speaks through what it may be; a component speaks for itself elsewhere."""
    return next((option.description for option in schema.any_of if option.description), schema.description)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "?")) else ".")


# -- types -------------------------------------------------------------------------------------------------------


def type_of(schema: Schema, whole: Description) -> Html:
    """What a value may be, in words. A component is a link to its place, unless it is only a choice of words."""
    if schema.ref and not whole.schema(schema).enum:
        return link(f"type-{anchor(schema.name)}", schema.name)
    if schema.any_of:
        return joined([type_of(option, whole) for option in schema.any_of], " or ")
    if values := whole.schema(schema).enum:
        return joined([el("code", str(value)) for value in values], " | ")
    if schema.const is not UNSET:
        return el("code", str(schema.const))
    if schema.type == "array":
        return joined(["list of ", type_of(schema.items, whole)] if schema.items else ["list"])
    inner = schema.additional_properties
    if schema.type == "object" and isinstance(inner, Schema) and (inner.type or inner.ref):
        return joined(["object of ", type_of(inner, whole)])
    kinds = schema.type if isinstance(schema.type, list) else [schema.type]
    return joined([kind or "any JSON" for kind in kinds], " or ")


def bounds(schema: Schema) -> Iterator[Html]:
    """The bounds of a value, or of whichever of its kinds has some."""
    for option in schema.any_of:
        yield from bounds(option)
    for low, high, unit in (
        (schema.minimum, schema.maximum, ""),
        (schema.min_length, schema.max_length, " characters"),
        (schema.min_items, schema.max_items, " items"),
    ):
        if range_ := _range(low, high):
            yield joined([range_, unit])
    if schema.items is not None and (inner := list(bounds(schema.items))):
        yield joined(["each ", joined(inner, ", ")])


def patterns(schema: Schema) -> Iterator[Html]:
    for part in (schema, *schema.any_of, *([schema.items] if schema.items else [])):
        if part.pattern:
            yield el("code", part.pattern)


def _range(low: float | None, high: float | None) -> str:
    if high is not None and high >= UNBOUNDED:
        high = None
    if low is not None and high is not None:
        return f"{low:,} to {high:,}"
    if low is not None:
        return f"at least {low:,}"
    return "" if high is None else f"at most {high:,}"
