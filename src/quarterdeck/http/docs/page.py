"""Builds the page: table of contents, introduction, routes by group, types."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path

from quarterdeck.http.docs import introduction
from quarterdeck.http.docs.markup import EMPTY, Html, document, el, format_prose, join_html, link, stylesheet, to_anchor
from quarterdeck.http.docs.openapi_types import ApiDescription, RouteEntry, Tag, parse_description
from quarterdeck.http.docs.route_html import method_badge, path_html, route_article
from quarterdeck.http.docs.schema_html import field_list, fields_of, type_html

STYLESHEET = Path(__file__).with_name("page.css")
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0f2a3d"/>'
    '<g fill="none" stroke="#d9a441" stroke-width="2.4" stroke-linecap="round"><circle cx="16" cy="16" r="6.5"/>'
    '<path d="M16 5v22M5 16h22M8.2 8.2l15.6 15.6M23.8 8.2 8.2 23.8"/></g></svg>'
)
"""A ship's wheel."""


def render(description: Mapping[str, object]) -> bytes:
    """The HTML page for an OpenAPI document."""
    api = parse_description(description)
    return document(_head(api), join_html([_table_of_contents(api), el("main", *_main_sections(api))]))


def _head(api: ApiDescription) -> Html:
    icon = base64.b64encode(ICON.encode()).decode()
    return join_html(
        [
            el("meta", charset="utf-8"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("title", f"{api.info.title} {api.info.version} API"),
            el("link", rel="icon", href=f"data:image/svg+xml;base64,{icon}"),
            stylesheet(STYLESHEET.read_text(encoding="utf-8")),
        ]
    )


def _main_sections(api: ApiDescription) -> Iterator[Html]:
    yield from introduction.introduction_sections(api)
    for tag, routes in api.groups():
        yield _group_section(tag, routes, api)
    yield _types_section(api)


# -- table of contents -------------------------------------------------------------------------------------------


def _table_of_contents(api: ApiDescription) -> Html:
    section_links = [el("li", link(target, title)) for target, title in introduction.SECTIONS.items()]
    groups = [
        el(
            "li",
            link(_group_anchor(tag), _group_title(tag)),
            el("ul", *(_route_link(route) for route in routes)),
            class_="group",
        )
        for tag, routes in api.groups()
    ]
    return el(
        "nav",
        el("p", link("start", api.info.title), " ", el("small", api.info.version), class_="brand"),
        el("ul", *section_links, *groups, el("li", link("types", "Types"))),
        aria_label="Contents",
    )


def _route_link(route: RouteEntry) -> Html:
    return el(
        "li", link(route.operation.operation_id, method_badge(route.method), route.operation.summary or route.path)
    )


# -- routes and types --------------------------------------------------------------------------------------------


def _group_section(tag: Tag, routes: list[RouteEntry], api: ApiDescription) -> Html:
    route_links = [
        el("li", link(route.operation.operation_id, method_badge(route.method), path_html(route.path)))
        for route in routes
    ]
    return el(
        "section",
        el("h2", _group_title(tag)),
        el("p", format_prose(tag.description)) if tag.description else EMPTY,
        el("ul", *route_links, class_="index"),
        *(route_article(route, api) for route in routes),
        id=_group_anchor(tag),
    )


def _types_section(api: ApiDescription) -> Html:
    blocks = []
    for name, schema in api.components.schemas.items():
        fields = fields_of(schema)
        blocks.append(
            el(
                "div",
                el("h3", link(f"type-{to_anchor(name)}", name)),
                el("p", format_prose(schema.description)) if schema.description else EMPTY,
                field_list(fields, api) if fields else el("p", type_html(schema, api)),
                id=f"type-{to_anchor(name)}",
                class_="type",
            )
        )
    return el("section", el("h2", "Types"), el("div", *blocks, class_="types"), id="types")


def _group_title(tag: Tag) -> str:
    return tag.name.capitalize()


def _group_anchor(tag: Tag) -> str:
    return f"group-{to_anchor(tag.name)}"
