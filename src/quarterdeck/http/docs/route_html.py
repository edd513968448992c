"""One route: what it takes, an example of asking and answering, and how it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from quarterdeck.http.docs.markup import EMPTY, Html, el, joined, link, prose
from quarterdeck.http.docs.openapi_types import Content, Description, Media, Operation, Parameter, Refusal, Row
from quarterdeck.http.docs.schema_html import Field, field_list, fields_of, json_block, pretty, type_of

EVENT_STREAM = "text/event-stream"
SHORT_BODY = 44
"""A body that is not longer than this stands on one line of the example."""


def article(row: Row, whole: Description) -> Html:
    """Everything about one route: words on one side, examples on the other."""
    operation = row.operation
    return el(
        "article",
        el(
            "div",
            el("h3", link(operation.operation_id, operation.summary or row.path)),
            el("p", method(row.method), path(row.path), class_="line"),
            el("p", prose(operation.description)) if operation.description else EMPTY,
            _needs(operation),
            *_takes(operation, whole),
            *_gives(operation, whole),
            *_refuses(operation),
            class_="words",
        ),
        el("div", *_examples(row, whole), class_="examples"),
        id=operation.operation_id,
    )


def method(name: str) -> Html:
    return el("span", name, class_=f"method {name.lower()}")


def path(text: str) -> Html:
    """A path that may break after each slash, with its parameters set apart."""
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
                el("dd", prose(refusal.meaning)),
            )
            for refusal in sorted(refusals, key=lambda refusal: refusal.status or 0)
        ),
        class_="refusals",
    )


# -- words -------------------------------------------------------------------------------------------------------


def _needs(operation: Operation) -> Html:
    if not operation.security:
        return el("p", "Public: needs no token.", class_="needs")
    scopes = joined([el("code", scope) for scope in operation.scopes], " and ")
    ways = "token or key" if len(operation.security) > 1 else "token"
    return el("p", "Needs a ", link("tokens", ways), " with the scope ", scopes, ".", class_="needs")


def _takes(operation: Operation, whole: Description) -> Iterator[Html]:
    parameters = [whole.parameter(parameter) for parameter in operation.parameters]
    for place, title in (("path", "Path"), ("query", "Query"), ("header", "Headers")):
        if found := [_field(parameter) for parameter in parameters if parameter.place == place]:
            yield el("h4", title)
            yield field_list(found, whole)
    if operation.request_body is not None and (media := operation.request_body.media) is not None:
        yield el("h4", "Body")
        fields = fields_of(whole.schema(media.schema))
        yield field_list(fields, whole) if fields else el("p", type_of(media.schema, whole))


def _field(parameter: Parameter) -> Field:
    return Field(parameter.name, parameter.schema, parameter.required, parameter.description)


def _gives(operation: Operation, whole: Description) -> Iterator[Html]:
    yield el("h4", "Answers")
    yield el("dl", *(_answer(status, answer, whole) for status, answer in _successes(operation)), class_="answers")


def _answer(status: str, answer: Content, whole: Description) -> Html:
    shown = joined([" ", type_of(answer.media.schema, whole)]) if answer.media else EMPTY
    return el("div", el("dt", el("span", status, class_="status good")), el("dd", f"{answer.description}.", shown))


def _refuses(operation: Operation) -> Iterator[Html]:
    if operation.refusals:
        yield el("h4", "Refusals")
        yield refusal_table(operation.refusals)


# -- examples ----------------------------------------------------------------------------------------------------


def _examples(row: Row, whole: Description) -> Iterator[Html]:
    yield el("div", el("p", "Ask"), el("pre", el("code", curl(row, whole)), tabindex="0"), class_="panel")
    for status, answer in _successes(row.operation):
        if answer.media is not None and answer.media.example is not UNSET:
            yield el("div", el("p", "Answer ", el("b", status)), json_block(answer.media.example), class_="panel")
            yield from _followed(row, answer, whole)
            return


def _followed(row: Row, answer: Content, whole: Description) -> Iterator[Html]:
    """How the same route is asked for an answer without an end, where it has one."""
    media = answer.content.get(EVENT_STREAM)
    if media is not None and isinstance(media.example, str):
        asked = curl(row, whole).replace("curl", "curl -N", 1) + f" \\\n  -H 'Accept: {EVENT_STREAM}'"
        yield el("div", el("p", "Follow"), el("pre", el("code", asked), tabindex="0"), class_="panel")
        shown = media.example.rstrip("\n")
        yield el("div", el("p", "Each event"), el("pre", el("code", shown), tabindex="0"), class_="panel")


def curl(row: Row, whole: Description) -> str:
    """A command that a person can paste, given $SERVER and $TOKEN."""
    words = ["curl"]
    if row.method != "GET":
        words[0] += f" -X {row.method}"
    words[0] += f' "$SERVER{_filled(row, whole)}"'
    if row.operation.security:
        words.append('-H "Authorization: Bearer $TOKEN"')
    if any(whole.parameter(given).name == "Idempotency-Key" for given in row.operation.parameters):
        words.append("-H 'Idempotency-Key: a-key-of-yours'")
    body = row.operation.request_body
    if body is not None and body.media is not None and body.media.example is not UNSET:
        words += ["-H 'Content-Type: application/json'", f"-d '{_body(body.media)}'"]
    return " \\\n  ".join(words)


def _filled(row: Row, whole: Description) -> str:
    """The path with its examples in the place of its parameters, and the parameters of the query that must be there."""
    filled, query = row.path, []
    for parameter in map(whole.parameter, row.operation.parameters):
        example = quote(str("" if parameter.example is UNSET else parameter.example), safe="-_.:~")
        if parameter.place == "path":
            filled = filled.replace(f"{{{parameter.name}}}", example or parameter.name)
        elif parameter.place == "query" and parameter.required:
            query.append(f"{parameter.name}={example or '...'}")
    return quote(filled, safe="/-_.:~%") + ("?" + "&".join(query) if query else "")


def _body(media: Media) -> str:
    short = msgspec.json.encode(media.example).decode()
    shown = short if len(short) <= SHORT_BODY else pretty(media.example)
    return shown.replace("'", "'\\''")


def _successes(operation: Operation) -> Iterator[tuple[str, Content]]:
    for status, answer in operation.responses.items():
        if status.startswith("2"):
            yield status, answer
