"""What a route answers: what success looks like, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core import errors
from quarterdeck.core.routing import Route
from quarterdeck.http.openapi import error_codes
from quarterdeck.http.openapi.examples import AN_ID, Sampler
from quarterdeck.http.openapi.schemas import PLACE, Json, Schemas
from quarterdeck.http.problem_json import CONTENT_TYPE
from quarterdeck.http.stream_limits import EVENT_STREAM

WITH_TOKEN = (400, 401, 403, 404, 429, 500, 503)
WITHOUT_TOKEN = (500, 503)
"""The problems any route may answer with, beyond those its row names."""
PROBLEM_EXAMPLE: Json = {
    "type": "urn:quarterdeck:problem:agent_concurrency_limit_exceeded",
    "title": "Limit reached",
    "status": 429,
    "detail": "max_concurrent is 8, and 8 are used (live child sessions in the zone).",
    "error": "agent_concurrency_limit_exceeded",
    "request_id": AN_ID,
    "bound": "max_concurrent",
    "limit": 8,
    "used": 8,
    "frees": "a child session of the zone ends; or an administrator raises max_concurrent (ceiling 1000000)",
    "retry_after": 5,
}


def successes(route: Route, schemas: Schemas, sampler: Sampler) -> Json:
    """What success looks like. 201 is 200 for what was there already; 204 is 200 for who asks to see more."""
    full: Json = {"description": _phrase(200), "headers": _answer_headers(route, schemas)}
    if route.answer is not None:
        full["content"] = content(schemas.of(route.answer), sampler)
    if route.streams is not None:
        full["content"] = {**_content(full), **_events(schemas.of(route.streams), sampler)}
    if route.status == 201:
        made: Json = {"201": {**full, "description": _phrase(201)}}
        # Of what is made by its id, by an Idempotency-Key, or known otherwise; any other POST makes something new each
        # time.
        keyed = "idempotency_key_conflict" in route.refusals
        may_repeat = route.method == "PUT" or keyed or route.may_be_known
        return made | {"200": {**full, "description": "It was there already"}} if may_repeat else made
    if route.status == 204:
        empty: Json = {"description": _phrase(204), "headers": full["headers"]}
        return {"204": empty} if route.answer is None else {"204": empty, "200": full}
    return {str(route.status): {**full, "description": _phrase(route.status)}}


def _phrase(status: int) -> str:
    return {200: "Done", 201: "Made", 202: "Accepted", 204: "Done; there is nothing to show"}.get(status, "Answered")


def content(schema: Json, sampler: Sampler) -> Json:
    return {"application/json": {"schema": schema, "example": sampler.value(schema)}}


def _content(answer: Json) -> Json:
    found = answer.get("content")
    return found if isinstance(found, dict) else {}


def _events(schema: Json, sampler: Sampler) -> Json:
    """Server-sent events. OpenAPI 3.1 has no word for them, so they are text, with one shown."""
    event = sampler.value(schema)
    told = msgspec.json.encode(event).decode()
    fields = event if isinstance(event, dict) else {}
    # What is no event of the log itself is named for what it is.
    pos, name = fields.get("pos", 42), fields.get("type", "entry")
    shown = f"id: {pos}\nevent: {name}\ndata: {told}\n\n"
    return {EVENT_STREAM: {"schema": {"type": "string"}, "example": shown}}


def _answer_headers(route: Route, schemas: Schemas) -> Json:
    headers: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if route.query is not None and "cursor" in schemas.fields(route.query)[0]:
        headers["Link"] = {"$ref": "#/components/headers/Link"}
    return headers


def headers() -> Json:
    text, number = {"type": "string"}, {"type": "integer", "minimum": 0}
    return {
        "RequestId": {"description": "The request's own x-request-id, or one made here.", "schema": text},
        "Link": {"description": 'The next page of a list that goes on, with rel="next".', "schema": text},
        "RetryAfter": {"description": "Seconds to wait, where waiting helps.", "schema": number},
        "Challenge": {"description": "Bearer, with the code.", "schema": text},
    }


# -- what is refused ---------------------------------------------------------------------------------------------


def problems(route: Route) -> Json:
    """The problem answers of a route: those of all routes, and those of its own codes, which are named."""
    named: dict[int, list[str]] = {}
    for code in route.refusals:
        if known := error_codes.meaning(code):
            named.setdefault(known.kind.status, []).append(code)
    statuses = set(WITHOUT_TOKEN if route.scope is None else WITH_TOKEN) | named.keys()
    if route.body is not None:
        statuses |= {400, 413}
    known_kinds = kinds()
    return {str(status): _reference(known_kinds[status], named.get(status, [])) for status in sorted(statuses)}


def _reference(kind: type[errors.Problem], named: Sequence[str]) -> Json:
    reference: Json = {"$ref": f"#/components/responses/{kind.__name__}"}
    if named:
        reference["description"] = f"{kind.title}: {', '.join(named)}"
    return reference


def problem(kind: type[errors.Problem]) -> Json:
    headers: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if kind.status in (429, 503):
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    if kind.status == 401:
        headers["WWW-Authenticate"] = {"$ref": "#/components/headers/Challenge"}
    media: Json = {"schema": {"$ref": PLACE + "Problem"}}
    if kind.status == PROBLEM_EXAMPLE["status"]:
        media["example"] = PROBLEM_EXAMPLE
    return {"description": kind.title, "headers": headers, "content": {CONTENT_TYPE.decode(): media}}


def kinds() -> dict[int, type[errors.Problem]]:
    """One kind for each status. Kinds that other modules derive look like the kind they derive from."""
    found: dict[int, type[errors.Problem]] = {}
    for kind in errors.leaves():
        if kind.__module__ == errors.__name__:
            found.setdefault(kind.status, kind)
    return found


def refusal(code: str) -> Json:
    known = error_codes.meaning(code)
    return {"error": code} if known is None else {"error": code, "status": known.kind.status, "meaning": known.says}
