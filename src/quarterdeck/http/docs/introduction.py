"""The prose at the beginning of the page."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from quarterdeck.http.docs.markup import Html, el, format_prose
from quarterdeck.http.docs.openapi_types import ApiDescription
from quarterdeck.http.docs.route_html import refusal_table
from quarterdeck.http.docs.schema_html import json_block

SECTIONS = {"start": "Start", "tokens": "Tokens and keys", "conventions": "Conventions", "refusals": "Refusals"}

START_COMMANDS = """export SERVER=http://127.0.0.1:4000
export TOKEN=$(qd token --app my-app)"""
SPAWN_COMMAND = """curl "$SERVER/zones/default/agents" \\
  -H "Authorization: Bearer $TOKEN" \\
  -H 'Content-Type: application/json' \\
  -d '{"application_id":"my-app"}'"""
TOKEN_COMMANDS = """qd token --zone default --app my-app
qd token --scope quarterdeck.admin --ttl 600"""

KEY_COMMANDS = """export KEY=$(qd key create --app my-app --ttl 30d)
curl "$SERVER/zones/default/agents" -H "X-API-Key: $KEY"
qd key list
qd key revoke ID"""

CONVENTIONS = (
    "Bodies are JSON in UTF-8, of at most 256 KiB, unless a route says that it takes more, and of 64 levels. Unknown "
    "fields are ignored, except among limits.",
    "Ids in a path are 1 to 128 letters, digits and `_ . - :`. Instants are ISO-8601 in UTC, with milliseconds.",
    "Lists come in pages. `next_cursor`, or a `Link` header, leads to the next one; cursors are opaque.",
    "With an `Idempotency-Key` repeating is safe: the same key and body give the same answer. A refusal binds no key.",
    "Every answer has an `X-Request-Id`: yours if you sent one.",
    "A W3C `traceparent` is kept with every event that the request causes, and its trace id stands in the request's "
    "log line; `qd` sends the one it finds in `TRACEPARENT`. One that is malformed, or given twice, is ignored. "
    "`tracestate` may be sent, and is dropped.",
)


def introduction_sections(api: ApiDescription) -> Iterator[Html]:
    yield _start_section(api)
    yield _tokens_section()
    yield el(
        "section",
        el("h2", "Conventions"),
        el("ul", *(el("li", format_prose(text)) for text in CONVENTIONS)),
        id="conventions",
    )
    yield _refusals_section(api)


def _start_section(api: ApiDescription) -> Html:
    paragraphs = [
        el("h2", "A session in a minute"),
        _paragraph(
            "`$SERVER` is the address of this server, as `qd status` prints it. `qd token` prints a bearer token."
        ),
        _paragraph("Every example on this page uses these two. A zone named `default` is there from the start."),
        _paragraph("The same description for programs is at `/openapi.json`, as OpenAPI 3.1."),
    ]
    return el(
        "section",
        el("h1", api.info.title, " ", el("small", f"API {api.info.version}")),
        el("p", format_prose(api.info.description), class_="lead"),
        _two_columns(
            paragraphs,
            [_command_panel("Start", START_COMMANDS), _command_panel("Spawn a first session", SPAWN_COMMAND)],
        ),
        id="start",
    )


def _tokens_section() -> Html:
    paragraphs = [
        el("h2", "Tokens and keys"),
        _paragraph(
            "Every route that is not public wants to know who asks. Either `Authorization: Bearer` and a token, a JWT "
            "that is for one zone; or `X-API-Key` and a key of one zone. A request with both is refused."
        ),
        _paragraph(
            "`agent:lifecycle` is the scope of the agent plane (a server may give it another name). "
            "`coordinator.admin` acts for every application of its zone. `quarterdeck.admin` crosses zones."
        ),
        _paragraph(
            "A token or a key acts for the application it was made for. One that names a session is good only while "
            "that session lives: from the commit of its end on it is 401 `session_ended`, whichever replica is asked."
        ),
        _paragraph(
            "A key is shown once and stored as a digest. It is asked about with every request, so a key that was "
            "revoked or has expired is 401 `invalid_token` from that moment on. No key holds `quarterdeck.admin`."
        ),
    ]
    panels = [_command_panel("Make a token", TOKEN_COMMANDS), _command_panel("Make a key", KEY_COMMANDS)]
    return el("section", _two_columns(paragraphs, panels), id="tokens")


def _refusals_section(api: ApiDescription) -> Html:
    example = api.problem_example()
    paragraphs = [
        el("h2", "Refusals"),
        _paragraph(
            "What cannot be done is refused with `application/problem+json`. Match on `error`; show `detail`. A bound "
            "that holds explains itself: which `bound`, its `limit`, how much is `used`, and what `frees` it."
        ),
        _paragraph(
            "Where waiting helps there is a `Retry-After`. These may come from any route, and "
            "what only some routes answer stands with them."
        ),
    ]
    panels = [] if example is UNSET else [_panel("A bound holds", json_block(example))]
    return el("section", _two_columns(paragraphs, panels), refusal_table(api.refusals), id="refusals")


def _two_columns(paragraphs: list[Html], panels: list[Html]) -> Html:
    """Words, with examples beside them where the screen is wide enough."""
    return el("div", el("div", *paragraphs, class_="words"), el("div", *panels, class_="examples"), class_="beside")


def _command_panel(title: str, commands: str) -> Html:
    return _panel(title, el("pre", el("code", commands), tabindex="0"))


def _panel(title: str, content: Html) -> Html:
    return el("div", el("p", title), content, class_="panel")


def _paragraph(text: str) -> Html:
    return el("p", format_prose(text))
