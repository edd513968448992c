"""The OpenAPI document matches the route table and the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, cast

import msgspec
import pytest

from quarterdeck.core import errors
from quarterdeck.core.caller import ADMIN, LIFECYCLE
from quarterdeck.core.routing import Route
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.rules import admission
from quarterdeck.http import openapi, problem_json
from quarterdeck.http.openapi import error_codes
from quarterdeck.http.openapi.examples import EXAMPLE_ID
from quarterdeck.http.openapi.responses import PROBLEM_EXAMPLE
from quarterdeck.http.openapi.schemas import Problem
from tests.http.route_table_support import build_handler, build_routes
from tests.support.source import dotted, parse_modules

Json = Mapping[str, object]
STATUS = re.compile(r"[1-5]\d\d")
COMPONENT = re.compile(r"[A-Za-z0-9._-]+")
TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}
NEVER_OVER_HTTP = {"src/quarterdeck/http/auth/local_issuer.py"}
"""Modules whose errors reach only the command line (`qd token`)."""


class Leaf(msgspec.Struct):
    """One of two types that share a name."""

    size: int


def other_leaf() -> type[msgspec.Struct]:
    return msgspec.defstruct("Leaf", [("colour", Literal["red", "green"])], module="another.module")


class Branch(msgspec.Struct):
    """A recursive type with free-form fields."""

    leaf: Leaf
    anything: object
    raw: msgspec.Raw
    inner: list[Branch]
    above: Branch | None = None


class QueryFields(msgspec.Struct):
    needed: int
    optional: str | None = None


@pytest.fixture(scope="module")
def routes() -> list[Route]:
    return build_routes()


@pytest.fixture(scope="module")
def openapi_document(routes: list[Route]) -> dict[str, object]:
    return openapi.describe(routes, "1.2.3")


# -- the document ------------------------------------------------------------------------------------------------


def test_every_route_is_described_once(routes: list[Route], openapi_document: Json) -> None:
    found = [(method.upper(), path) for path, method, _ in operations(openapi_document)]
    assert sorted(found) == sorted((route.method, route.path) for route in routes)


def test_operation_ids_are_unique_and_independent_of_handlers(openapi_document: Json) -> None:
    names = [operation["operationId"] for _, _, operation in operations(openapi_document)]
    assert len(set(names)) == len(names)
    assert "post_zones_zone_agents" in names
    similar = [Route("GET", path, build_handler(), "", None) for path in ("/a/b", "/a-b", "/{a}/b")]
    assert len({operation["operationId"] for _, _, operation in operations(openapi.describe(similar, "1"))}) == 3


def test_public_routes_need_no_token_and_all_others_name_their_scope(
    routes: list[Route], openapi_document: Json
) -> None:
    for route in routes:
        # An API key is valid in one zone, so cross-zone routes accept only a token.
        schemes = {None: [], ADMIN: ["bearer"]}.get(route.scope, ["bearer", "apiKey"])
        assert operation_of(openapi_document, route)["security"] == [{scheme: [route.scope]} for scheme in schemes]
    scopes = {route.scope for route in routes}
    assert {None, LIFECYCLE, ADMIN} <= scopes


def test_document_has_the_structure_of_openapi_3_1(openapi_document: Json) -> None:
    assert openapi_document["openapi"] == "3.1.0"
    info = at(openapi_document, "info")
    assert info["title"] and info["version"] == "1.2.3"
    assert {tag["name"] for tag in items(openapi_document, "tags")} == {
        "zones",
        "sessions",
        "services",
        "delegations",
        "keys",
        "events",
        "server",
    }
    for part in at(openapi_document, "components").values():
        assert isinstance(part, dict)
        assert all(COMPONENT.fullmatch(name) for name in part)
    schemes = at(openapi_document, "components", "securitySchemes")
    assert (at(schemes, "bearer")["type"], at(schemes, "bearer")["scheme"]) == ("http", "bearer")
    key = at(schemes, "apiKey")
    assert (key["type"], key["in"], key["name"]) == ("apiKey", "header", "X-API-Key")
    for path, _, operation in operations(openapi_document):
        assert path.startswith("/")
        check_parameters(openapi_document, path, operation)
        assert any(status.startswith("2") for status in at(operation, "responses"))
        for status, response in at(operation, "responses").items():
            assert STATUS.fullmatch(status)
            check_content(resolve(openapi_document, cast(Json, response)))
        if "requestBody" in operation:
            check_content(at(operation, "requestBody"), needs_description=False)
    assert msgspec.json.decode(msgspec.json.encode(openapi_document)) == openapi_document


def test_every_reference_resolves(openapi_document: Json) -> None:
    references = [node["$ref"] for node in nodes(openapi_document) if "$ref" in node]
    assert len(references) > 50
    for reference in references:
        assert resolve(openapi_document, {"$ref": reference})


def test_every_schema_is_valid_json_schema(openapi_document: Json) -> None:
    for schema in schemas(openapi_document):
        kinds = schema.get("type", [])
        assert TYPES.issuperset([kinds] if isinstance(kinds, str) else cast(list[str], kinds)), schema
        required, properties = schema.get("required", []), schema.get("properties", {})
        assert set(cast(list[str], required)) <= set(cast(Json, properties)), schema
        if "pattern" in schema:
            re.compile(str(schema["pattern"]))


def test_describing_the_same_routes_twice_gives_the_same_document(routes: list[Route], openapi_document: Json) -> None:
    assert openapi.describe(routes, "1.2.3") == openapi_document


# -- parts of the document ---------------------------------------------------------------------------------------


def test_query_parameters_are_described_with_bounds_and_defaults(openapi_document: Json) -> None:
    listing = at(openapi_document, "paths", "/zones/{zone}/agents", "get")
    parameters = {str(parameter["name"]): parameter for parameter in items(listing, "parameters")}
    limit = at(parameters["limit"], "schema")
    assert (limit["type"], limit["minimum"], limit["maximum"], limit["default"]) == ("integer", 1, 500, 100)
    assert parameters["status"]["schema"] == {"$ref": "#/components/schemas/State"}
    assert at(parameters["cursor"], "schema")["type"] == "string"
    assert "ListQuery" not in at(openapi_document, "components", "schemas")
    document = openapi.describe([Route("GET", "/a", build_handler(query=QueryFields), "", None)], "1")
    assert [
        parameter.get("required", False) for parameter in items(at(document, "paths", "/a", "get"), "parameters")
    ] == [True, False]


def test_only_routes_with_key_conflicts_take_an_idempotency_key(routes: list[Route], openapi_document: Json) -> None:
    reference = {"$ref": "#/components/parameters/IdempotencyKey"}
    for route in routes:
        parameters = cast(list[object], operation_of(openapi_document, route).get("parameters", []))
        assert (reference in parameters) == ("idempotency_key_conflict" in route.errors)
    spawn = at(openapi_document, "paths", "/zones/{zone}/agents", "post")
    assert reference in cast(list[object], spawn["parameters"])


def test_create_and_delete_routes_list_every_success_status(openapi_document: Json) -> None:
    spawn = at(openapi_document, "paths", "/zones/{zone}/agents", "post", "responses")
    assert schema_of(spawn["201"]) == schema_of(spawn["200"]) == {"$ref": "#/components/schemas/SessionView"}
    service = at(openapi_document, "paths", "/zones/{zone}/agent-services", "post", "responses")
    assert schema_of(service["201"]) == schema_of(service["200"])
    key = at(openapi_document, "paths", "/zones/{zone}/keys", "post", "responses")
    assert "200" not in key
    ending = at(openapi_document, "paths", "/zones/{zone}/agents/{id}", "delete", "responses")
    assert "content" not in cast(Json, ending["204"])
    assert schema_of(ending["200"]) == {"$ref": "#/components/schemas/Receipt"}


def test_every_route_lists_its_problem_responses(routes: list[Route], openapi_document: Json) -> None:
    for route in routes:
        responses = at(operation_of(openapi_document, route), "responses")
        expected = {500, 503} if route.scope is None else {400, 401, 403, 404, 429, 500, 503}
        described = [description for code in route.errors if (description := error_codes.find_code(code))]
        expected |= {description.problem_type.status for description in described}
        for status in expected:
            assert "Problem" in str(schema_of(resolve(openapi_document, cast(Json, responses[str(status)]))))
        listed = operation_of(openapi_document, route).get("x-refusals", [])
        assert [entry["error"] for entry in cast(list[Json], listed)] == list(route.errors)


def test_free_form_json_and_recursive_types_are_described() -> None:
    document = openapi.describe([Route("POST", "/a", build_handler(Branch, None, Branch), "", None)], "1")
    fields = at(document, "components", "schemas", "Branch", "properties")
    assert "type" not in cast(Json, fields["raw"]) and "type" not in cast(Json, fields["anything"])
    example = at(document, "paths", "/a", "post", "requestBody", "content", "application/json")["example"]
    assert msgspec.json.decode(msgspec.json.encode(example), type=Branch).leaf == Leaf(0)


def test_types_that_share_a_name_get_separate_schemas() -> None:
    kinds = (Leaf, other_leaf())
    document = openapi.describe(
        [Route("GET", f"/{number}", build_handler(response=kind), "", None) for number, kind in enumerate(kinds)], "1"
    )
    schema_names = at(document, "components", "schemas")
    assert len([name for name in schema_names if name.endswith("Leaf")]) == 2


# -- agreement with the code -------------------------------------------------------------------------------------


def test_every_example_decodes_as_its_type(routes: list[Route], openapi_document: Json) -> None:
    checked = 0
    for route in routes:
        operation = operation_of(openapi_document, route)
        if route.body is not None:
            assert_decodes(at(operation, "requestBody"), route.body)
            checked += 1
        for response in at(operation, "responses").values():
            if "application/json" in cast(Json, cast(Json, response).get("content", {})):
                assert_decodes(cast(Json, response), route.response)
                checked += 1
    assert checked > 12


def test_problem_schema_matches_the_sent_problem_bodies() -> None:
    sent = problem_json.encode_body(admission.limit_exceeded(admission.MAX_CONCURRENT, 8, 8), EXAMPLE_ID)
    assert msgspec.json.decode(sent) == PROBLEM_EXAMPLE
    assert msgspec.json.decode(sent, type=Problem).bound == "max_concurrent"
    for kind in errors.concrete_types():
        members: dict[str, object] = {"field": "a.b"} if kind is errors.Invalid else {}
        decoded = msgspec.json.decode(
            problem_json.encode_body(kind("code", "A sentence.", **members), "r"), type=Problem
        )
        assert (decoded.error, decoded.status, decoded.title) == ("code", kind.status, kind.title)


def test_every_error_code_of_a_route_is_described(routes: list[Route]) -> None:
    unknown = {code for route in routes for code in route.errors if error_codes.find_code(code) is None}
    assert not unknown, f"describe these codes in http/openapi/error_codes.py: {unknown}"


def test_described_error_codes_equal_the_raised_codes() -> None:
    raised = dict(raised_codes())
    listed = {**error_codes.COMMON_CODES, **error_codes.ROUTE_CODES}
    missing = raised.keys() - listed.keys()
    assert not missing, f"describe these codes in http/openapi/error_codes.py: {sorted(missing)}"
    wrong = {code for code, kind in raised.items() if listed[code].problem_type.__name__ != kind}
    assert not wrong, f"listed with a problem type other than the one raised: {wrong}"
    stale = listed.keys() - raised.keys() - {bound.code for bound in rules.BOUNDS}
    assert not stale, f"listed but never raised: {stale}"


# -- helpers -----------------------------------------------------------------------------------------------------


def raised_codes() -> Iterator[tuple[str, str]]:
    """Every literal code passed to a problem type, with the name of that type."""
    kinds = {kind.__name__ for kind in errors.concrete_types() if kind.__module__ == errors.__name__}
    for module in parse_modules("src"):
        package = module.path.removeprefix("src/quarterdeck/").partition("/")[0]
        if package not in ("core", "engine", "store", "domain", "http") or module.path in NEVER_OVER_HTTP:
            continue
        for node in module.walk():
            if isinstance(node, ast.Call) and node.args and dotted(node.func).rpartition(".")[2] in kinds:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value, dotted(node.func).rpartition(".")[2]


def assert_decodes(content: Json, kind: object) -> None:
    example = at(content, "content", "application/json")["example"]
    msgspec.json.decode(msgspec.json.encode(example), type=cast(type[object], kind))


def check_parameters(document: Json, path: str, operation: Json) -> None:
    parameters = [resolve(document, parameter) for parameter in cast(list[Json], operation.get("parameters", []))]
    locations = [(parameter["name"], parameter["in"]) for parameter in parameters]
    assert len(set(locations)) == len(locations)
    assert {name for name, location in locations if location == "path"} == set(re.findall(r"{(\w+)}", path))
    for parameter in parameters:
        assert parameter["in"] in ("path", "query", "header") and isinstance(parameter["schema"], dict)
        if parameter["in"] == "path":
            assert parameter["required"] is True and "pattern" in parameter["schema"]


def check_content(content: Json, *, needs_description: bool = True) -> None:
    assert not needs_description or content["description"]
    for name, media in cast(Json, content.get("content", {})).items():
        assert name in ("application/json", "application/problem+json", "text/event-stream")
        assert isinstance(cast(Json, media)["schema"], dict)


def at(value: object, *path: str) -> Json:
    for name in path:
        value = cast(Json, value)[name]
    assert isinstance(value, dict)
    return value


def items(value: Json, name: str) -> list[Json]:
    return [cast(Json, item) for item in cast(Sequence[object], value[name])]


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, methods in at(document, "paths").items():
        for method, operation in cast(Json, methods).items():
            yield path, method, cast(Json, operation)


def operation_of(document: Json, route: Route) -> Json:
    return at(document, "paths", route.path, route.method.lower())


def schema_of(response: object) -> object:
    [media] = cast(Json, cast(Json, response)["content"]).values()
    return cast(Json, media)["schema"]


def resolve(document: Json, node: Json) -> Json:
    if "$ref" not in node:
        return node
    reference = str(node["$ref"])
    assert reference.startswith("#/components/")
    return at(document, *reference.split("/")[1:])


def nodes(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def schemas(document: Json) -> Iterator[Json]:
    """Every schema of the document, including nested ones."""
    roots = [*at(document, "components", "schemas").values()]
    roots += [node["schema"] for node in nodes(document) if "schema" in node]
    for root in roots:
        yield from subschemas(cast(Json, root))


def subschemas(schema: Json) -> Iterator[Json]:
    yield schema
    children = [*cast(Json, schema.get("properties", {})).values(), *cast(list[object], schema.get("anyOf", []))]
    children += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    for child in children:
        yield from subschemas(cast(Json, child))
