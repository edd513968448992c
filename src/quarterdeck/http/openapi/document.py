"""Builds the OpenAPI document, from the outside in: the document, a path, an operation, its parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from quarterdeck.core.caller import ADMIN, Role
from quarterdeck.core.idempotency import KEY_BYTES_MAX
from quarterdeck.core.ids import NAME_MAX, PATH_ID
from quarterdeck.core.routing import Route
from quarterdeck.domain.zones.rules import PERMISSIONS
from quarterdeck.http.openapi import error_codes, responses
from quarterdeck.http.openapi.examples import EXAMPLE_ID, TYPICAL_VALUES, ExampleBuilder
from quarterdeck.http.openapi.schemas import Json, Schemas, without_null
from quarterdeck.http.router import NAME_PARAMETERS, NUMBER_PARAMETERS

TITLE = "Quarterdeck"
API_DESCRIPTION = (
    "A coordination server for fleets of AI agents: admission, tasks, messages, delegation of authority, permissions, "
    "monitoring, and termination of whole session trees with a receipt."
)
TAG_DESCRIPTIONS: Mapping[str, str] = {
    "zones": "A zone is a tenant. Everything belongs to exactly one zone, and a zone's limits apply to all of it.",
    "sessions": "A session is one live run of an agent. Sessions form trees: ending one ends its whole subtree.",
    "services": "A service is an endpoint that a session or an application offers. It ends with its owner.",
    "delegations": "A delegation lends authority from one session to another. Each further delegation only narrows it.",
    "keys": "An API key acts for one application in one zone. It is shown once and stored as a digest.",
    "members": "A workspace is a zone. Its members are the subjects with a role in it.",
    "fleets": "A fleet is a team of coding agents, its members, with one director and one administrator.",
    "messages": "A message is one delivery between members of a fleet. It is acknowledged or canceled once. A "
    "broadcast is one message per recipient.",
    "monitor": "One monitor process watches a fleet and pings its members.",
    "events": "Every change writes one event, in the same transaction. The order of `pos` is the order of commits.",
    "server": "Health, metrics, documentation and public keys of the server.",
}
BEARER, API_KEY = "bearer", "apiKey"
_ID_PARAMETER: Json = {
    "description": "1 to 128 letters, digits and _ . - :",
    "schema": {"type": "string", "pattern": f"^{PATH_ID.pattern}$"},
}
_NAME_PARAMETER: Json = {
    "description": f"1 to {NAME_MAX} characters, percent-encoded where needed; no control characters or slashes",
    "schema": {"type": "string", "pattern": f"^[^/\\x00-\\x1f\\x7f]{{1,{NAME_MAX}}}$"},
}
_NUMBER_PARAMETER: Json = {
    "description": "a number of at least 1",
    "schema": {"type": "integer", "minimum": 1, "maximum": 9_999_999_999_999_999},
}
_ZONE_HEADER: Json = {
    "name": "X-Workspace-ID",
    "in": "header",
    "description": "The workspace (zone) of the request. Default: the zone of the token. Only a token with the "
    "scope `quarterdeck.admin` may name another zone; all other tokens get 404 `workspace_not_found`.",
    "schema": {"type": "string", "pattern": f"^{PATH_ID.pattern}$"},
}
_LAST_EVENT_ID: Json = {
    "name": "Last-Event-ID",
    "in": "header",
    "description": "For a stream: the last event id that the client received. The stream continues after it "
    "and ignores `after`.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,19}$"},
}
_IDEMPOTENCY_KEY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Makes a retry safe: the same key with the same body returns the same object. At most "
    f"{KEY_BYTES_MAX} bytes, no control characters.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX},
}
_BEARER_SCHEME: Json = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "A token from the local issuer (`qd token`) or from an issuer that the server is configured "
    "to trust. It is valid in one zone and must have the scope that the operation names.",
}
_API_KEY_SCHEME: Json = {
    "type": "apiKey",
    "in": "header",
    "name": "X-API-Key",
    "description": "A key of one application in one zone (`qd key create`). It replaces the token: a request with "
    "both is refused.",
}
_LICENSE: Json = {"name": "Apache 2.0", "identifier": "Apache-2.0"}


def describe(routes: Sequence[Route], version: str) -> dict[str, object]:
    """The OpenAPI 3.1 document for a list of routes."""
    schemas = Schemas(routes)
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version, "description": API_DESCRIPTION, "license": _LICENSE},
        "servers": [{"url": "/"}],
        "tags": [_tag(name) for name in dict.fromkeys(name for route in routes for name in route.tags)],
        "paths": _paths(routes, schemas),
        "components": {
            "schemas": schemas.components,
            "responses": {
                problem_type.__name__: responses.problem_component(problem_type)
                for problem_type in responses.problem_types().values()
            },
            "headers": responses.header_components(),
            "parameters": {"IdempotencyKey": _IDEMPOTENCY_KEY, "WorkspaceId": _ZONE_HEADER},
            "securitySchemes": {BEARER: _BEARER_SCHEME, API_KEY: _API_KEY_SCHEME},
        },
        "x-refusals": [responses.error_code_entry(code) for code in error_codes.COMMON_CODES],
    }


def _paths(routes: Sequence[Route], schemas: Schemas) -> Json:
    example_builder = ExampleBuilder(schemas.components)
    paths: dict[str, Json] = {}
    for route, name in zip(routes, _operation_ids(routes), strict=True):
        item = paths.setdefault(route.path, {})
        item[route.method.lower()] = {"operationId": name, **_operation(route, schemas, example_builder)}
    return dict(paths)


def _operation(route: Route, schemas: Schemas, example_builder: ExampleBuilder) -> Json:
    operation: Json = {"summary": route.summary}
    if description := " ".join(_description_sentences(route)):
        operation["description"] = description
    if route.tags:
        operation["tags"] = list(route.tags)
    if parameters := [*_path_parameters(route), *_query_parameters(route, schemas), *_header_parameters(route)]:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            # An empty body counts as `{}`, so a body is required only if one of its fields is.
            "required": bool(schemas.resolve(schemas.schema_of(route.body)).get("required")),
            "content": responses.json_content(schemas.schema_of(route.body), example_builder),
        }
    operation["responses"] = {
        **responses.success_responses(route, schemas, example_builder),
        **responses.problem_responses(route),
    }
    operation["security"] = [{scheme: [route.scope]} for scheme in _security_schemes(route)]
    if route.permission is not None:
        operation["x-power"] = route.permission
    if route.body_bytes_max is not None:
        operation["x-body-max"] = route.body_bytes_max
    if route.errors:
        operation["x-refusals"] = [responses.error_code_entry(code) for code in route.errors]
    return operation


# -- requests ----------------------------------------------------------------------------------------------------


def _description_sentences(route: Route) -> Iterator[str]:
    if route.description:
        yield route.description
    if route.permission is not None:
        allowed = [role.value for role in Role if role in PERMISSIONS[route.permission]]
        yield f"Needs the permission `{route.permission}`: role {_join_with_or(allowed)}."
    if route.body_bytes_max is not None:
        yield f"The body may be up to {_format_size(route.body_bytes_max)}."


def _join_with_or(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _format_size(byte_count: int) -> str:
    mebibytes, remainder = divmod(byte_count, 1 << 20)
    return f"{byte_count // 1024} KiB" if remainder else f"{mebibytes} MiB"


def _path_parameters(route: Route) -> Iterator[Json]:
    for name in re.findall(r"{(\w+)}", route.path):
        if name in NUMBER_PARAMETERS:
            yield {"name": name, "in": "path", "required": True, **_NUMBER_PARAMETER, "example": 1}
            continue
        parameter_form = _NAME_PARAMETER if name in NAME_PARAMETERS else _ID_PARAMETER
        yield {
            "name": name,
            "in": "path",
            "required": True,
            **parameter_form,
            "example": TYPICAL_VALUES.get(name, EXAMPLE_ID),
        }


def _query_parameters(route: Route, schemas: Schemas) -> Iterator[Json]:
    if route.query is None:
        return
    fields, required = schemas.query_fields(route.query)
    for name, field in fields.items():
        schema = without_null(field)
        parameter: Json = {"name": name, "in": "query", "schema": schema}
        if name in required:
            parameter["required"] = True
        if description := schema.pop("description", None):
            parameter["description"] = description
        yield parameter


def _header_parameters(route: Route) -> Iterator[Json]:
    # Every route that supports idempotency keys lists this error.
    if "idempotency_key_conflict" in route.errors:
        yield {"$ref": "#/components/parameters/IdempotencyKey"}
    if route.is_in_caller_zone:
        yield {"$ref": "#/components/parameters/WorkspaceId"}
    if route.stream_event is not None:
        yield _LAST_EVENT_ID


def _security_schemes(route: Route) -> Iterator[str]:
    """The accepted credentials. An API key is valid in its zone only and never has the admin scope."""
    if route.scope is not None:
        yield BEARER
        if route.scope != ADMIN:
            yield API_KEY


# -- names -------------------------------------------------------------------------------------------------------


def _operation_ids(routes: Iterable[Route]) -> Iterator[str]:
    """Build operation ids from the method and path, so that renaming a handler does not change them."""
    used: set[str] = set()
    for route in routes:
        stem = "_".join([route.method.lower(), *re.findall(r"[A-Za-z0-9]+", route.path)])
        name, number = stem, 1
        while name in used:
            number += 1
            name = f"{stem}_{number}"
        used.add(name)
        yield name


def _tag(name: str) -> Json:
    return {"name": name, "description": TAG_DESCRIPTIONS[name]} if name in TAG_DESCRIPTIONS else {"name": name}
