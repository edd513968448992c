"""The introduction at the top of the page."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET

from quarterdeck.http.docs.markup import Html, el, format_prose
from quarterdeck.http.docs.openapi_types import ApiDescription
from quarterdeck.http.docs.route_html import refusal_table
from quarterdeck.http.docs.schema_html import json_block

SECTIONS = {"start": "Start", "tokens": "Tokens and keys", "conventions": "Conventions", "refusals": "Errors"}

START_COMMANDS = """export SERVER=http://127.0.0.1:4000
export TOKEN=$(qd token --app my-app)"""
SPAWN_COMMAND = """curl "$SERVER/zones/default/agents" \\
  -H "Authorization: Bearer $TOKEN" \\
  -H 'Content-Type: application/json' \\
  -d '{"application_id":"my-app"}'"""
BEARER_COMMANDS = """qd token --zone default --app my-app
qd token --scope quarterdeck.admin --ttl 600"""

KEY_COMMANDS = """export KEY=$(qd key create --app my-app --ttl 30d)
curl "$SERVER/zones/default/agents" -H "X-API-Key: $KEY"
qd key list
qd key revoke ID"""

CONVENTIONS = (
    "Bodies are JSON in UTF-8, nested at most 64 levels deep, and at most 256 KiB unless a route allows more. Some "
    "routes refuse unknown fields with 400; the others ignore them.",
    "Ids in a path are 1 to 128 letters, digits and `_ . - :`. Times are ISO 8601 in UTC, with milliseconds.",
    "Lists are paged. `next_cursor` or a `Link` header leads to the next page. Cursors are opaque.",
    "An `Idempotency-Key` makes a retry safe: the same key and body give the same response. A refused request does "
    "not use up its key.",
    "Every response has an `X-Request-Id`. If the request has one, the response repeats it.",
    "A W3C `traceparent` is stored with every event that the request causes, and its trace id is in the request's log "
    "line. `qd` sends the value of `TRACEPARENT`. A malformed or repeated `traceparent` is ignored. `tracestate` is "
    "accepted and dropped.",
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
        el("h2", "Quick start"),
        _paragraph("`$SERVER` is the URL of this server, as printed by `qd status`. `qd token` prints a bearer token."),
        _paragraph("All examples on this page use these two variables. The zone `default` always exists."),
        _paragraph("The OpenAPI 3.1 document of this API is at `/openapi.json`."),
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
            "Every route that is not public needs a credential: either `Authorization: Bearer` with a token (a JWT for "
            "one zone), or `X-API-Key` with an API key of one zone. A request with both is refused."
        ),
        _paragraph(
            "Most routes need the scope `agent:lifecycle` (a server can be configured with another name). "
            "`coordinator.admin` can act for every application of its zone, `quarterdeck.admin` in every zone."
        ),
        _paragraph(
            "A token or a key acts for the application it was issued for. If it names a session, it is valid only "
            "while that session is live: once its end is committed, every replica answers 401 `session_ended`."
        ),
        _paragraph(
            "A key is shown once and stored as a digest. It is looked up for every request, so a revoked or expired "
            "key gets 401 `invalid_token` at once. No key has the scope `quarterdeck.admin`."
        ),
    ]
    panels = [_command_panel("Create a token", BEARER_COMMANDS), _command_panel("Create a key", KEY_COMMANDS)]
    return el("section", _two_columns(paragraphs, panels), id="tokens")


def _refusals_section(api: ApiDescription) -> Html:
    example = api.problem_example()
    paragraphs = [
        el("h2", "Errors"),
        _paragraph(
            "Errors are `application/problem+json`. Match on `error` and show `detail`. When a limit is reached, "
            "`bound` is its name, `limit` its value, `used` the current usage, and `frees` what would free capacity."
        ),
        _paragraph(
            "If a retry may succeed, the response has a `Retry-After` header. Any route can return the errors below. "
            "Each route also lists its own errors."
        ),
    ]
    panels = [] if example is UNSET else [_panel("A limit is reached", json_block(example))]
    return el("section", _two_columns(paragraphs, panels), refusal_table(api.refusals), id="refusals")


def _two_columns(paragraphs: list[Html], panels: list[Html]) -> Html:
    """Text, with examples beside it if the screen is wide enough."""
    return el("div", el("div", *paragraphs, class_="words"), el("div", *panels, class_="examples"), class_="beside")


def _command_panel(title: str, commands: str) -> Html:
    return _panel(title, el("pre", el("code", commands), tabindex="0"))


def _panel(title: str, content: Html) -> Html:
    return el("div", el("p", title), content, class_="panel")


def _paragraph(text: str) -> Html:
    return el("p", format_prose(text))
