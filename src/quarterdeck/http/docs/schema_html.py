"""JSON, types, limits and defaults as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from quarterdeck.http.docs.markup import EMPTY, Html, el, format_prose, join_html, link, to_anchor
from quarterdeck.http.docs.openapi_types import ApiDescription, Schema

_TOKENS = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b')
UNBOUNDED = 2**63 - 1
"""The largest 64-bit integer. If it is a field's maximum, it is not shown: it only means that the value has 64 bits."""


class Field(NamedTuple):
    """A field of a request or a response."""

    name: str
    schema: Schema
    required: bool = False
    description: str = ""


def pretty_json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def json_block(value: object) -> Html:
    return el("pre", el("code", highlight_json(pretty_json(value))), tabindex="0")


def highlight_json(text: str) -> Html:
    """JSON with a CSS class for each kind of token."""
    parts: list[str] = []
    end = 0
    for match in _TOKENS.finditer(text):
        string, colon, number, keyword = match.groups()
        css_class = "k" if colon else "s" if string else "n" if number else "w"
        parts += [text[end : match.start()], el("span", string or number or keyword, class_=css_class), colon or ""]
        end = match.end()
    return join_html([*parts, text[end:]])


# -- fields ------------------------------------------------------------------------------------------------------


def field_list(fields: list[Field], api: ApiDescription) -> Html:
    return el("dl", *(_field_html(field, api) for field in fields), class_="fields")


def fields_of(schema: Schema) -> list[Field]:
    return [Field(name, inner, name in schema.required, inner.description) for name, inner in schema.properties.items()]


def _field_html(field: Field, api: ApiDescription) -> Html:
    description = field.description or _schema_description(field.schema)
    facts = [type_html(field.schema, api), *limits_html(field.schema)]
    if not description:
        # A description is easier to read than a pattern, so the pattern is shown only if there is no description.
        facts += patterns_html(field.schema)
    if field.schema.default not in (UNSET, None):
        facts.append(join_html(["default ", el("code", msgspec.json.encode(field.schema.default).decode())]))
    badge = el("span", "required", class_="required") if field.required else EMPTY
    return el(
        "div",
        el("dt", el("code", field.name), badge),
        el(
            "dd",
            el("span", join_html(facts, " · "), class_="facts"),
            el("p", format_prose(_to_sentence(description))) if description else "",
        ),
    )


def _schema_description(schema: Schema) -> str:
    """The first description among the options of `anyOf`, or else the schema's own."""
    return next((option.description for option in schema.any_of if option.description), schema.description)


def _to_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", ":", "?")) else ".")


# -- types -------------------------------------------------------------------------------------------------------


def type_html(schema: Schema, api: ApiDescription) -> Html:
    """The type of a value as text. A component is a link to its section, unless it is an enum."""
    if schema.ref and not api.resolve_schema(schema).enum:
        return link(f"type-{to_anchor(schema.name)}", schema.name)
    if schema.any_of:
        return join_html([type_html(option, api) for option in schema.any_of], " or ")
    if values := api.resolve_schema(schema).enum:
        return join_html([el("code", str(value)) for value in values], " | ")
    if schema.const is not UNSET:
        return el("code", str(schema.const))
    if schema.type == "array":
        return join_html(["list of ", type_html(schema.items, api)] if schema.items else ["list"])
    inner = schema.additional_properties
    if schema.type == "object" and isinstance(inner, Schema) and (inner.type or inner.ref):
        return join_html(["object of ", type_html(inner, api)])
    type_names = schema.type if isinstance(schema.type, list) else [schema.type]
    return join_html([type_name or "any JSON" for type_name in type_names], " or ")


def limits_html(schema: Schema) -> Iterator[Html]:
    """The limits of a value, including those of the options of `anyOf`."""
    for option in schema.any_of:
        yield from limits_html(option)
    for low, high, unit in (
        (schema.minimum, schema.maximum, ""),
        (schema.min_length, schema.max_length, " characters"),
        (schema.min_items, schema.max_items, " items"),
    ):
        if range_ := _range_text(low, high):
            yield join_html([range_, unit])
    if schema.items is not None and (inner := list(limits_html(schema.items))):
        yield join_html(["each ", join_html(inner, ", ")])


def patterns_html(schema: Schema) -> Iterator[Html]:
    for part in (schema, *schema.any_of, *([schema.items] if schema.items else [])):
        if part.pattern:
            yield el("code", part.pattern)


def _range_text(low: float | None, high: float | None) -> str:
    if high is not None and high >= UNBOUNDED:
        high = None
    if low is not None and high is not None:
        return f"{low:,} to {high:,}"
    if low is not None:
        return f"at least {low:,}"
    return "" if high is None else f"at most {high:,}"
