"""The HTML documentation page: complete, self-contained and safe against hostile text."""

from __future__ import annotations

import shlex
from enum import StrEnum
from html import unescape
from html.parser import HTMLParser
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from quarterdeck.core.routing import Route
from quarterdeck.http import docs, openapi
from quarterdeck.http.docs.markup import stylesheet
from quarterdeck.http.docs.openapi_types import parse_description
from quarterdeck.http.docs.route_html import curl_command
from quarterdeck.http.openapi import error_codes
from tests.http.route_table_support import build_handler, build_routes

HOSTILE_TEXT = "</title></style><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&`<b>`"
VOID_TAGS = {"meta", "link", "wbr"}


class Choice(StrEnum):
    WORD = HOSTILE_TEXT


class HostileQuery(msgspec.Struct):
    word: Annotated[str, Meta(pattern="<i>", description=HOSTILE_TEXT)] = HOSTILE_TEXT
    bare: Annotated[str, Meta(pattern="<i>")] = ""


class HostileBody(msgspec.Struct):
    choice: Choice
    text: Annotated[str, Meta(examples=[HOSTILE_TEXT])]


HostileBody.__doc__ = HOSTILE_TEXT


class Quoted(msgspec.Struct):
    text: Annotated[str, Meta(examples=["it's $HOME; `date`"])]


class Page(HTMLParser):
    """A parsed page: its elements in order. An end tag must match the innermost open element."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.fixture(scope="module")
def routes() -> list[Route]:
    return build_routes()


@pytest.fixture(scope="module")
def content(routes: list[Route]) -> bytes:
    return docs.render(openapi.describe(routes, "1.2.3"))


@pytest.fixture(scope="module")
def page(content: bytes) -> Page:
    return Page(content)


def test_page_lists_every_route_with_its_errors_and_their_meaning(routes: list[Route], page: Page) -> None:
    for route in routes:
        assert route.summary in page.text
        assert route.path in page.text
        for code in route.errors:
            meaning = error_codes.find_code(code)
            assert meaning is not None
            assert f"{meaning.problem_type.status} {code}{meaning.meaning.replace('`', '')}" in page.text


def test_page_explains_tokens_and_field_limits(page: Page) -> None:
    for expected in ("qd token", "Authorization: Bearer $TOKEN", "1 to 86,400", "default 3600", "agent:lifecycle"):
        assert expected in page.text


def test_every_element_is_closed_and_every_link_has_one_target(page: Page) -> None:
    assert page.open == []
    ids = page.attributes("id")
    assert len(set(ids)) == len(ids)
    links = [target for target in page.attributes("href") if not target.startswith("data:")]
    assert len(links) > 40
    assert {target.removeprefix("#") for target in links} <= set(ids)


def test_page_loads_no_resources_and_runs_no_scripts(content: bytes, page: Page) -> None:
    assert not {"script", "iframe", "img", "object", "embed", "form"} & {tag for tag, _ in page.elements}
    assert [target for target in page.attributes("href") if not target.startswith(("#", "data:image/"))] == []
    for _, attributes in page.elements:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "srcset", "style", "action")
        ]
    style = content.decode().partition("<style>")[2].partition("</style>")[0]
    assert style and "url(" not in style and "@import" not in style and "prefers-color-scheme: dark" in style


def test_page_is_smaller_than_300_kb(content: bytes) -> None:
    assert len(content) < 300_000


def test_hostile_text_is_escaped() -> None:
    route = Route(
        "POST", "/a/{b}/<u>", build_handler(HostileBody, HostileQuery, HostileBody), HOSTILE_TEXT, HOSTILE_TEXT,
        description=HOSTILE_TEXT, errors=(HOSTILE_TEXT,), tags=(HOSTILE_TEXT,),
    )  # fmt: skip
    page = Page(docs.render(openapi.describe([route], HOSTILE_TEXT)))
    assert page.open == []
    assert not {"script", "img", "i", "u"} & {tag for tag, _ in page.elements}
    assert page.text.count("<script>alert(1)</script>") >= 8
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_curl_example_is_quoted_for_a_shell() -> None:
    routes = [Route("POST", "/zones/{zone}/a", build_handler(Quoted, None, Quoted), "", "some:scope")]
    description = parse_description(openapi.describe(routes, "1"))
    [row] = description.routes()
    words = shlex.split(curl_command(row, description))
    assert words[:4] == ["curl", "-X", "POST", "$SERVER/zones/default/a"]
    assert words[words.index("-d") + 1] == '{"text":"it\'s $HOME; `date`"}'
    assert "Authorization: Bearer $TOKEN" in words


def test_stylesheet_with_a_closing_tag_is_refused() -> None:
    with pytest.raises(ValueError):
        stylesheet("a { } </style><script>")


def test_invalid_openapi_description_is_refused_with_its_path() -> None:
    with pytest.raises(msgspec.ValidationError, match="paths"):
        docs.render({"info": {"title": "a", "version": "1"}, "paths": 3})


def test_escaped_text_reads_as_written(content: bytes) -> None:
    assert "zone's" in unescape(content.decode())
