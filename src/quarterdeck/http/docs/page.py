"""The whole page: the contents, the chapters, the routes by group, the types at the end."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path

from quarterdeck.http.docs import introduction
from quarterdeck.http.docs.markup import EMPTY, Html, anchor, document, el, joined, link, prose, stylesheet
from quarterdeck.http.docs.openapi_types import Description, Row, Tag, read
from quarterdeck.http.docs.route_html import article, method, path
from quarterdeck.http.docs.schema_html import field_list, fields_of, type_of

STYLE = Path(__file__).with_name("page.css")
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0f2a3d"/>'
    '<g fill="none" stroke="#d9a441" stroke-width="2.4" stroke-linecap="round"><circle cx="16" cy="16" r="6.5"/>'
    '<path d="M16 5v22M5 16h22M8.2 8.2l15.6 15.6M23.8 8.2 8.2 23.8"/></g></svg>'
)
"""A ship's wheel."""


def render(description: Mapping[str, object]) -> bytes:
    """One page of HTML for an OpenAPI description."""
    whole = read(description)
    return document(_head(whole), joined([_contents(whole), el("main", *_main(whole))]))


def _head(whole: Description) -> Html:
    icon = base64.b64encode(ICON.encode()).decode()
    return joined(
        [
            el("meta", charset="utf-8"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("title", f"{whole.info.title} {whole.info.version}: the API"),
            el("link", rel="icon", href=f"data:image/svg+xml;base64,{icon}"),
            stylesheet(STYLE.read_text(encoding="utf-8")),
        ]
    )


def _main(whole: Description) -> Iterator[Html]:
    yield from introduction.all_of(whole)
    for tag, rows in whole.groups():
        yield _group(tag, rows, whole)
    yield _types(whole)


# -- the contents ------------------------------------------------------------------------------------------------


def _contents(whole: Description) -> Html:
    opening = [el("li", link(place, title)) for place, title in introduction.PLACES.items()]
    groups = [
        el("li", link(_place(tag), _title(tag)), el("ul", *(_entry(row) for row in rows)), class_="group")
        for tag, rows in whole.groups()
    ]
    return el(
        "nav",
        el("p", link("start", whole.info.title), " ", el("small", whole.info.version), class_="brand"),
        el("ul", *opening, *groups, el("li", link("types", "Types"))),
        aria_label="Contents",
    )


def _entry(row: Row) -> Html:
    return el("li", link(row.operation.operation_id, method(row.method), row.operation.summary or row.path))


# -- the routes and the types ------------------------------------------------------------------------------------


def _group(tag: Tag, rows: list[Row], whole: Description) -> Html:
    index = [el("li", link(row.operation.operation_id, method(row.method), path(row.path))) for row in rows]
    return el(
        "section",
        el("h2", _title(tag)),
        el("p", prose(tag.description)) if tag.description else EMPTY,
        el("ul", *index, class_="index"),
        *(article(row, whole) for row in rows),
        id=_place(tag),
    )


def _types(whole: Description) -> Html:
    shown = []
    for name, schema in whole.components.schemas.items():
        fields = fields_of(schema)
        shown.append(
            el(
                "div",
                el("h3", link(f"type-{anchor(name)}", name)),
                el("p", prose(schema.description)) if schema.description else EMPTY,
                field_list(fields, whole) if fields else el("p", type_of(schema, whole)),
                id=f"type-{anchor(name)}",
                class_="type",
            )
        )
    return el("section", el("h2", "Types"), el("div", *shown, class_="types"), id="types")


def _title(tag: Tag) -> str:
    return tag.name.capitalize()


def _place(tag: Tag) -> str:
    return f"group-{anchor(tag.name)}"
