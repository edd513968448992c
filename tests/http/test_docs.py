"""The page for people: whole, self-contained, and deaf to hostile text."""

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
from tests.http.route_table_support import build_routes, unreachable_handler

EVIL = "</title></style><script>alert(1)</script><img src=x onerror='alert(2)'>\"'&`<b>`"
VOID = {"meta", "link", "wbr"}


class Choice(StrEnum):
    WORD = EVIL


class HostileQuery(msgspec.Struct):
    word: Annotated[str, Meta(pattern="<i>", description=EVIL)] = EVIL
    bare: Annotated[str, Meta(pattern="<i>")] = ""


class HostileBody(msgspec.Struct):
    choice: Choice
    text: Annotated[str, Meta(examples=[EVIL])]


HostileBody.__doc__ = EVIL


class Quoted(msgspec.Struct):
    text: Annotated[str, Meta(examples=["it's $HOME; `date`"])]


class Page(HTMLParser):
    """A page, taken apart: its elements in order, and whether each was closed where it should be."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page.decode())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

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


def test_every_route_is_on_the_page_with_its_refusals_and_what_they_mean(routes: list[Route], page: Page) -> None:
    for route in routes:
        assert route.summary in page.text
        assert route.path in page.text
        for code in route.errors:
            meaning = error_codes.find_code(code)
            assert meaning is not None
            assert f"{meaning.problem_type.status} {code}{meaning.meaning.replace('`', '')}" in page.text


def test_the_page_says_how_to_get_a_token_and_how_long_fields_may_be(page: Page) -> None:
    for expected in ("qd token", "Authorization: Bearer $TOKEN", "1 to 86,400", "default 3600", "agent:lifecycle"):
        assert expected in page.text


def test_every_element_is_closed_and_every_link_leads_to_one_place_on_the_page(page: Page) -> None:
    assert page.open == []
    places = page.attributes("id")
    assert len(set(places)) == len(places)
    links = [place for place in page.attributes("href") if not place.startswith("data:")]
    assert len(links) > 40
    assert {place.removeprefix("#") for place in links} <= set(places)


def test_the_page_loads_nothing_and_runs_nothing(content: bytes, page: Page) -> None:
    assert not {"script", "iframe", "img", "object", "embed", "form"} & {tag for tag, _ in page.elements}
    assert [place for place in page.attributes("href") if not place.startswith(("#", "data:image/"))] == []
    for _, attributes in page.elements:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "srcset", "style", "action")
        ]
    style = content.decode().partition("<style>")[2].partition("</style>")[0]
    assert style and "url(" not in style and "@import" not in style and "prefers-color-scheme: dark" in style


def test_the_page_is_small(content: bytes) -> None:
    assert len(content) < 300_000


def test_hostile_text_stays_text() -> None:
    route = Route(
        "POST", "/a/{b}/<u>", unreachable_handler, EVIL, EVIL, body=HostileBody, query=HostileQuery, response=HostileBody,
        description=EVIL, errors=(EVIL,), tags=(EVIL,),
    )  # fmt: skip
    page = Page(docs.render(openapi.describe([route], EVIL)))
    assert page.open == []
    assert not {"script", "img", "i", "u"} & {tag for tag, _ in page.elements}
    assert page.text.count("<script>alert(1)</script>") >= 8
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_an_example_can_be_pasted_into_a_shell() -> None:
    routes = [Route("POST", "/zones/{zone}/a", unreachable_handler, "", "some:scope", body=Quoted, response=Quoted)]
    whole = parse_description(openapi.describe(routes, "1"))
    [row] = whole.routes()
    words = shlex.split(curl_command(row, whole))
    assert words[:4] == ["curl", "-X", "POST", "$SERVER/zones/default/a"]
    assert words[words.index("-d") + 1] == '{"text":"it\'s $HOME; `date`"}'
    assert "Authorization: Bearer $TOKEN" in words


def test_a_stylesheet_cannot_end_its_element_early() -> None:
    with pytest.raises(ValueError):
        stylesheet("a { } </style><script>")


def test_a_description_that_is_none_is_refused_with_its_place() -> None:
    with pytest.raises(msgspec.ValidationError, match="paths"):
        docs.render({"info": {"title": "a", "version": "1"}, "paths": 3})


def test_text_that_is_escaped_reads_as_it_was_written(content: bytes) -> None:
    assert "zone's" in unescape(content.decode())
