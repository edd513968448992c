"""One route as HTML: its fields, an example request and response, its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from quarterdeck.http.docs.markup import EMPTY, Html, el, format_prose, join_html, link
from quarterdeck.http.docs.openapi_types import (
    ApiDescription,
    Content,
    Media,
    Operation,
    Parameter,
    Refusal,
    RouteEntry,
)
from quarterdeck.http.docs.schema_html import Field, field_list, fields_of, json_block, pretty_json, type_html

EVENT_STREAM = "text/event-stream"
SHORT_BODY_CHARACTERS_MAX = 44
"""A body of at most this many characters is shown on one line of the example."""


def route_article(route: RouteEntry, api: ApiDescription) -> Html:
    """One route: text on one side, examples on the other."""
    operation = route.operation
    return el(
        "article",
        el(
            "div",
            el("h3", link(operation.operation_id, operation.summary or route.path)),
            el("p", method_badge(route.method), path_html(route.path), class_="line"),
            el("p", format_prose(operation.description)) if operation.description else EMPTY,
            _security_html(operation),
            *_request_fields(operation, api),
            *_responses_html(operation, api),
            *_refusals_html(operation),
            class_="words",
        ),
        el("div", *_examples(route, api), class_="examples"),
        id=operation.operation_id,
    )


def method_badge(name: str) -> Html:
    return el("span", name, class_=f"method {name.lower()}")


def path_html(text: str) -> Html:
    """A path that may wrap after each slash, with its parameters marked."""
    pieces: list[str] = []
    for piece in re.split(r"({\w+}|/)", text):
        pieces.append(el("var", piece) if piece.startswith("{") else piece)
        if piece == "/":
            pieces.append(el("wbr"))
    return el("code", *pieces, class_="path")


def refusal_table(refusals: list[Refusal]) -> Html:
    return el(
        "dl",
        *(
            el(
                "div",
                el("dt", el("span", str(refusal.status or ""), class_="status"), " ", el("code", refusal.error)),
                el("dd", format_prose(refusal.meaning)),
            )
            for refusal in sorted(refusals, key=lambda refusal: refusal.status or 0)
        ),
        class_="refusals",
    )


# -- text --------------------------------------------------------------------------------------------------------


def _security_html(operation: Operation) -> Html:
    if not operation.security:
        return el("p", "Public: needs no token.", class_="needs")
    scopes = join_html([el("code", scope) for scope in operation.scopes], " and ")
    credentials = "token or key" if len(operation.security) > 1 else "token"
    return el("p", "Needs a ", link("tokens", credentials), " with the scope ", scopes, ".", class_="needs")


def _request_fields(operation: Operation, api: ApiDescription) -> Iterator[Html]:
    parameters = [api.resolve_parameter(parameter) for parameter in operation.parameters]
    for location, title in (("path", "Path"), ("query", "Query"), ("header", "Headers")):
        if parameter_fields := [_to_field(parameter) for parameter in parameters if parameter.location == location]:
            yield el("h4", title)
            yield field_list(parameter_fields, api)
    if operation.request_body is not None and (media := operation.request_body.media) is not None:
        yield el("h4", "Body")
        fields = fields_of(api.resolve_schema(media.schema))
        yield field_list(fields, api) if fields else el("p", type_html(media.schema, api))


def _to_field(parameter: Parameter) -> Field:
    return Field(parameter.name, parameter.schema, parameter.required, parameter.description)


def _responses_html(operation: Operation, api: ApiDescription) -> Iterator[Html]:
    yield el("h4", "Responses")
    yield el(
        "dl", *(_response_html(status, response, api) for status, response in _successes(operation)), class_="answers"
    )


def _response_html(status: str, response: Content, api: ApiDescription) -> Html:
    response_type = join_html([" ", type_html(response.media.schema, api)]) if response.media else EMPTY
    return el(
        "div", el("dt", el("span", status, class_="status good")), el("dd", f"{response.description}.", response_type)
    )


def _refusals_html(operation: Operation) -> Iterator[Html]:
    if operation.refusals:
        yield el("h4", "Errors")
        yield refusal_table(operation.refusals)


# -- examples ----------------------------------------------------------------------------------------------------


def _examples(route: RouteEntry, api: ApiDescription) -> Iterator[Html]:
    yield el("div", el("p", "Request"), el("pre", el("code", curl_command(route, api)), tabindex="0"), class_="panel")
    for status, response in _successes(route.operation):
        if response.media is not None and response.media.example is not UNSET:
            yield el("div", el("p", "Response ", el("b", status)), json_block(response.media.example), class_="panel")
            yield from _stream_example(route, response, api)
            return


def _stream_example(route: RouteEntry, response: Content, api: ApiDescription) -> Iterator[Html]:
    """An example of the route's event stream, if it has one."""
    media = response.content.get(EVENT_STREAM)
    if media is not None and isinstance(media.example, str):
        command = curl_command(route, api).replace("curl", "curl -N", 1) + f" \\\n  -H 'Accept: {EVENT_STREAM}'"
        yield el("div", el("p", "Stream"), el("pre", el("code", command), tabindex="0"), class_="panel")
        event_text = media.example.rstrip("\n")
        yield el("div", el("p", "Each event"), el("pre", el("code", event_text), tabindex="0"), class_="panel")


def curl_command(route: RouteEntry, api: ApiDescription) -> str:
    """A command to paste into a shell in which $SERVER and $TOKEN are set."""
    parts = ["curl"]
    if route.method != "GET":
        parts[0] += f" -X {route.method}"
    parts[0] += f' "$SERVER{_example_url(route, api)}"'
    if route.operation.security:
        parts.append('-H "Authorization: Bearer $TOKEN"')
    if any(api.resolve_parameter(parameter).name == "Idempotency-Key" for parameter in route.operation.parameters):
        parts.append("-H 'Idempotency-Key: my-key-1'")
    body = route.operation.request_body
    if body is not None and body.media is not None and body.media.example is not UNSET:
        parts += ["-H 'Content-Type: application/json'", f"-d '{_example_body(body.media)}'"]
    return " \\\n  ".join(parts)


def _example_url(route: RouteEntry, api: ApiDescription) -> str:
    """The path with example values for its parameters, and the required query parameters."""
    url_path, query = route.path, []
    for parameter in map(api.resolve_parameter, route.operation.parameters):
        example = quote(str("" if parameter.example is UNSET else parameter.example), safe="-_.:~")
        if parameter.location == "path":
            url_path = url_path.replace(f"{{{parameter.name}}}", example or parameter.name)
        elif parameter.location == "query" and parameter.required:
            query.append(f"{parameter.name}={example or '...'}")
    return quote(url_path, safe="/-_.:~%") + ("?" + "&".join(query) if query else "")


def _example_body(media: Media) -> str:
    short = msgspec.json.encode(media.example).decode()
    text = short if len(short) <= SHORT_BODY_CHARACTERS_MAX else pretty_json(media.example)
    return text.replace("'", "'\\''")


def _successes(operation: Operation) -> Iterator[tuple[str, Content]]:
    for status, response in operation.responses.items():
        if status.startswith("2"):
            yield status, response
