"""The responses of a route: success and errors."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core import errors
from quarterdeck.core.routing import Route
from quarterdeck.http.openapi import error_codes
from quarterdeck.http.openapi.examples import EXAMPLE_ID, ExampleBuilder
from quarterdeck.http.openapi.schemas import SCHEMA_REF_PREFIX, Json, Schemas
from quarterdeck.http.problem_json import CONTENT_TYPE
from quarterdeck.http.stream_limits import EVENT_STREAM

AUTHENTICATED_STATUSES = (400, 401, 403, 404, 429, 500, 503)
"""Error statuses that any route with a scope may return, in addition to those of its own error codes."""
PUBLIC_STATUSES = (500, 503)
"""The same for routes without a scope."""
PROBLEM_EXAMPLE: Json = {
    "type": "urn:quarterdeck:problem:agent_concurrency_limit_exceeded",
    "title": "Limit reached",
    "status": 429,
    "detail": "Quota max_concurrent reached: 8 of 8 live child sessions in the zone.",
    "error": "agent_concurrency_limit_exceeded",
    "request_id": EXAMPLE_ID,
    "bound": "max_concurrent",
    "limit": 8,
    "used": 8,
    "frees": "a child session of the zone ends; or an administrator raises max_concurrent (ceiling 1000000)",
    "retry_after": 5,
}


def success_responses(route: Route, schemas: Schemas, example_builder: ExampleBuilder) -> Json:
    """The success responses.

    A route with 201 returns 200 for an object that already existed. A route with 204 returns 200 if the client requests
    a body.
    """
    success: Json = {"description": _status_description(200), "headers": _response_headers(route, schemas)}
    if route.response is not None:
        success["content"] = json_content(schemas.schema_of(route.response), example_builder)
    if route.stream_event is not None:
        success["content"] = {
            **_content_of(success),
            **_event_stream_content(schemas.schema_of(route.stream_event), example_builder),
        }
    if route.status == 201:
        created: Json = {"201": {**success, "description": _status_description(201)}}
        # The object may already exist if its id, an Idempotency-Key or something else identifies it. Any other POST
        # creates a new object each time.
        takes_key = "idempotency_key_conflict" in route.errors
        is_repeatable = route.method == "PUT" or takes_key or route.returns_existing
        return created | {"200": {**success, "description": "Already existed"}} if is_repeatable else created
    if route.status == 204:
        empty: Json = {"description": _status_description(204), "headers": success["headers"]}
        return {"204": empty} if route.response is None else {"204": empty, "200": success}
    return {str(route.status): {**success, "description": _status_description(route.status)}}


def _status_description(status: int) -> str:
    return {200: "Success", 201: "Created", 202: "Accepted", 204: "Success, no content"}.get(status, "Response")


def json_content(schema: Json, example_builder: ExampleBuilder) -> Json:
    return {"application/json": {"schema": schema, "example": example_builder.build(schema)}}


def _content_of(response: Json) -> Json:
    content = response.get("content")
    return content if isinstance(content, dict) else {}


def _event_stream_content(schema: Json, example_builder: ExampleBuilder) -> Json:
    """Server-sent events. OpenAPI 3.1 cannot describe them, so their schema is a string, with one example."""
    event = example_builder.build(schema)
    data = msgspec.json.encode(event).decode()
    fields = event if isinstance(event, dict) else {}
    # The events of a timeline stream have no `type`; their name is `entry`.
    pos, name = fields.get("pos", 42), fields.get("type", "entry")
    example = f"id: {pos}\nevent: {name}\ndata: {data}\n\n"
    return {EVENT_STREAM: {"schema": {"type": "string"}, "example": example}}


def _response_headers(route: Route, schemas: Schemas) -> Json:
    headers: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if route.query is not None and "cursor" in schemas.query_fields(route.query)[0]:
        headers["Link"] = {"$ref": "#/components/headers/Link"}
    return headers


def header_components() -> Json:
    text, number = {"type": "string"}, {"type": "integer", "minimum": 0}
    return {
        "RequestId": {"description": "The X-Request-Id of the request, or a generated one.", "schema": text},
        "Link": {"description": 'The next page of a list, with rel="next".', "schema": text},
        "RetryAfter": {"description": "Seconds after which a retry may succeed.", "schema": number},
        "Challenge": {"description": "Bearer, with the error code.", "schema": text},
    }


# -- errors ------------------------------------------------------------------------------------------------------


def problem_responses(route: Route) -> Json:
    """The error responses of a route: the common ones, and those for its own codes, which the description lists."""
    codes_by_status: dict[int, list[str]] = {}
    for code in route.errors:
        if error_code := error_codes.find_code(code):
            codes_by_status.setdefault(error_code.problem_type.status, []).append(code)
    statuses = set(PUBLIC_STATUSES if route.scope is None else AUTHENTICATED_STATUSES) | codes_by_status.keys()
    if route.body is not None:
        statuses |= {400, 413}
    problem_types_by_status = problem_types()
    return {
        str(status): _response_reference(problem_types_by_status[status], codes_by_status.get(status, []))
        for status in sorted(statuses)
    }


def _response_reference(problem_type: type[errors.Problem], codes: Sequence[str]) -> Json:
    reference: Json = {"$ref": f"#/components/responses/{problem_type.__name__}"}
    if codes:
        reference["description"] = f"{problem_type.title}: {', '.join(codes)}"
    return reference


def problem_component(problem_type: type[errors.Problem]) -> Json:
    headers: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if problem_type.status in (429, 503):
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    if problem_type.status == 401:
        headers["WWW-Authenticate"] = {"$ref": "#/components/headers/Challenge"}
    media: Json = {"schema": {"$ref": SCHEMA_REF_PREFIX + "Problem"}}
    if problem_type.status == PROBLEM_EXAMPLE["status"]:
        media["example"] = PROBLEM_EXAMPLE
    return {"description": problem_type.title, "headers": headers, "content": {CONTENT_TYPE.decode(): media}}


def problem_types() -> dict[int, type[errors.Problem]]:
    """One problem type per status. Subclasses from other modules share the response of their base type."""
    types_by_status: dict[int, type[errors.Problem]] = {}
    for problem_type in errors.concrete_types():
        if problem_type.__module__ == errors.__name__:
            types_by_status.setdefault(problem_type.status, problem_type)
    return types_by_status


def error_code_entry(code: str) -> Json:
    error_code = error_codes.find_code(code)
    return (
        {"error": code}
        if error_code is None
        else {"error": code, "status": error_code.problem_type.status, "meaning": error_code.meaning}
    )
