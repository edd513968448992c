"""The description itself. Reads from the outside in: the document, a path, an operation, its parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from quarterdeck.core import errors
from quarterdeck.core.ids import PATH_ID
from quarterdeck.core.keys import KEY_BYTES_MAX
from quarterdeck.core.wire import Route
from quarterdeck.http.openapi import codes
from quarterdeck.http.openapi.examples import AN_ID, USUAL, Sampler
from quarterdeck.http.openapi.schemas import PLACE, Json, Schemas, without_null
from quarterdeck.http.problems import CONTENT_TYPE

TITLE = "Quarterdeck"
ABOUT = (
    "The coordination plane for fleets of AI agents: one server that admits them, gives them work, carries their "
    "messages, passes authority between them, gates what they may do, watches over them, and stops them, all of "
    "them, provably, when it must."
)
GROUPS: Mapping[str, str] = {
    "zones": "Everything belongs to exactly one zone, and the limits of a zone hold for all that lives in it.",
    "sessions": "A session is one live run of an agent. Sessions form trees: ending one ends its whole subtree.",
    "events": "Every change writes one event in its own transaction. The order of `pos` is the order of commits.",
    "server": "How the server is, what it serves, and its public keys.",
}
BEARER = "bearer"
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


def describe(routes: Sequence[Route], version: str) -> dict[str, object]:
    """OpenAPI 3.1 for a table of routes."""
    schemas = Schemas(routes)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version, "description": ABOUT, "license": _license()},
        "servers": [{"url": "/"}],
        "tags": [_tag(name) for name in dict.fromkeys(name for route in routes for name in route.tags)],
        "paths": _paths(routes, schemas),
        "components": {
            "schemas": schemas.components,
            "responses": {kind.__name__: _problem(kind) for kind in _kinds().values()},
            "headers": _headers(),
            "parameters": {"IdempotencyKey": _idempotency_key()},
            "securitySchemes": {BEARER: _bearer()},
        },
        "x-refusals": [_refusal(code) for code in codes.COMMON],
    }


def _paths(routes: Sequence[Route], schemas: Schemas) -> Json:
    sampler = Sampler(schemas.components)
    paths: dict[str, Json] = {}
    for route, name in zip(routes, _names(routes), strict=True):
        item = paths.setdefault(route.path, {})
        item[route.method.lower()] = {"operationId": name, **_operation(route, schemas, sampler)}
    return dict(paths)


def _operation(route: Route, schemas: Schemas, sampler: Sampler) -> Json:
    operation: Json = {"summary": route.summary}
    if route.description:
        operation["description"] = route.description
    if route.tags:
        operation["tags"] = list(route.tags)
    if parameters := [
        *_path_parameters(route),
        *_query_parameters(route, schemas),
        *_header_parameters(route),
    ]:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            # An empty body is an empty object, so it is needed only where one of its fields is.
            "required": bool(schemas.resolved(schemas.of(route.body)).get("required")),
            "content": _content(schemas.of(route.body), sampler),
        }
    operation["responses"] = {**_answers(route, schemas, sampler), **_problems(route)}
    operation["security"] = [] if route.scope is None else [{BEARER: [route.scope]}]
    if route.refusals:
        operation["x-refusals"] = [_refusal(code) for code in route.refusals]
    return operation


# -- what is asked -----------------------------------------------------------------------------------------------


def _path_parameters(route: Route) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", route.path):
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": "1 to 128 letters, digits and _ . - :",
            "schema": {"type": "string", "pattern": f"^{PATH_ID.pattern}$"},
            "example": USUAL.get(name, AN_ID),
        }


def _query_parameters(route: Route, schemas: Schemas) -> Iterator[Json]:
    if route.query is None:
        return
    fields, required = schemas.fields(route.query)
    for name, field in fields.items():
        schema = without_null(field)
        parameter: Json = {"name": name, "in": "query", "schema": schema}
        if name in required:
            parameter["required"] = True
        if says := schema.pop("description", None):
            parameter["description"] = says
        yield parameter


def _header_parameters(route: Route) -> Iterator[Json]:
    if route.method == "POST":
        yield {"$ref": "#/components/parameters/IdempotencyKey"}


def _idempotency_key() -> Json:
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "description": "Makes repeating safe: the same key with the same body is answered with the same thing. At "
        f"most {KEY_BYTES_MAX} bytes, no control characters.",
        "schema": {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX},
    }


def _bearer() -> Json:
    return {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "A token of the local issuer (`qd token`) or of the issuer the server was told to trust. It is "
        "for one zone, and holds the scope that the operation names.",
    }


# -- what is answered --------------------------------------------------------------------------------------------


def _answers(route: Route, schemas: Schemas, sampler: Sampler) -> Json:
    """What success looks like. 201 is 200 for what was there already; 204 is 200 for who asks to see more."""
    full: Json = {"description": _phrase(200), "headers": _answer_headers(route, schemas)}
    if route.answer is not None:
        full["content"] = _content(schemas.of(route.answer), sampler)
    if route.status == 201:
        return {
            "201": {**full, "description": _phrase(201)},
            "200": {**full, "description": "It was there already"},
        }
    if route.status == 204:
        empty: Json = {"description": _phrase(204), "headers": full["headers"]}
        return {"204": empty} if route.answer is None else {"204": empty, "200": full}
    return {str(route.status): {**full, "description": _phrase(route.status)}}


def _phrase(status: int) -> str:
    return {200: "Done", 201: "Made", 202: "Accepted", 204: "Done; there is nothing to show"}.get(
        status, "Answered"
    )


def _content(schema: Json, sampler: Sampler) -> Json:
    return {"application/json": {"schema": schema, "example": sampler.value(schema)}}


def _answer_headers(route: Route, schemas: Schemas) -> Json:
    headers: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if route.query is not None and "cursor" in schemas.fields(route.query)[0]:
        headers["Link"] = {"$ref": "#/components/headers/Link"}
    return headers


def _headers() -> Json:
    text, number = {"type": "string"}, {"type": "integer", "minimum": 0}
    return {
        "RequestId": {"description": "The request's own x-request-id, or one made here.", "schema": text},
        "Link": {"description": 'The next page of a list that goes on, with rel="next".', "schema": text},
        "RetryAfter": {"description": "Seconds to wait, where waiting helps.", "schema": number},
        "Challenge": {"description": "Bearer, with the code.", "schema": text},
    }


# -- what is refused ---------------------------------------------------------------------------------------------


def _problems(route: Route) -> Json:
    """The problem answers of a route: those of all routes, and those of its own codes, which are named."""
    named: dict[int, list[str]] = {}
    for code in route.refusals:
        if known := codes.meaning(code):
            named.setdefault(known.kind.status, []).append(code)
    statuses = set(WITHOUT_TOKEN if route.scope is None else WITH_TOKEN) | named.keys()
    if route.body is not None:
        statuses |= {400, 413}
    kinds = _kinds()
    return {str(status): _reference(kinds[status], named.get(status, [])) for status in sorted(statuses)}


def _reference(kind: type[errors.Problem], named: Sequence[str]) -> Json:
    reference: Json = {"$ref": f"#/components/responses/{kind.__name__}"}
    if named:
        reference["description"] = f"{kind.title}: {', '.join(named)}"
    return reference


def _problem(kind: type[errors.Problem]) -> Json:
    headers: Json = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    if kind.status in (429, 503):
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    if kind.status == 401:
        headers["WWW-Authenticate"] = {"$ref": "#/components/headers/Challenge"}
    media: Json = {"schema": {"$ref": PLACE + "Problem"}}
    if kind.status == PROBLEM_EXAMPLE["status"]:
        media["example"] = PROBLEM_EXAMPLE
    return {"description": kind.title, "headers": headers, "content": {CONTENT_TYPE.decode(): media}}


def _kinds() -> dict[int, type[errors.Problem]]:
    """One kind for each status. Kinds that other modules derive look like the kind they derive from."""
    found: dict[int, type[errors.Problem]] = {}
    for kind in errors.leaves():
        if kind.__module__ == errors.__name__:
            found.setdefault(kind.status, kind)
    return found


def _refusal(code: str) -> Json:
    known = codes.meaning(code)
    return (
        {"error": code}
        if known is None
        else {"error": code, "status": known.kind.status, "meaning": known.says}
    )


# -- names -------------------------------------------------------------------------------------------------------


def _names(routes: Iterable[Route]) -> Iterator[str]:
    """An operation is named for its method and path, which are the contract: a handler may be renamed at will."""
    given: set[str] = set()
    for route in routes:
        stem = "_".join([route.method.lower(), *re.findall(r"[A-Za-z0-9]+", route.path)])
        name, number = stem, 1
        while name in given:
            number += 1
            name = f"{stem}_{number}"
        given.add(name)
        yield name


def _tag(name: str) -> Json:
    return {"name": name, "description": GROUPS[name]} if name in GROUPS else {"name": name}


def _license() -> Json:
    return {"name": "Apache 2.0", "identifier": "Apache-2.0"}
