"""What the description says is what the table holds, and what the server does."""

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
from quarterdeck.http import openapi, problem_json
from quarterdeck.http.openapi import error_codes
from quarterdeck.http.openapi.examples import EXAMPLE_ID
from quarterdeck.http.openapi.responses import PROBLEM_EXAMPLE
from quarterdeck.http.openapi.schemas import Problem
from tests.http.route_table_support import build_routes, unreachable_handler
from tests.support.source import dotted, parse_modules

Json = Mapping[str, object]
STATUS = re.compile(r"[1-5]\d\d")
COMPONENT = re.compile(r"[A-Za-z0-9._-]+")
TYPES = {"string", "integer", "number", "boolean", "array", "object", "null"}
NEVER_OVER_HTTP = {"src/quarterdeck/http/auth/local_issuer.py"}
"""Refuses what `qd token` was asked for, on the command line."""


class Leaf(msgspec.Struct):
    """One of two rooms that call different things by one name."""

    size: int


def other_leaf() -> type[msgspec.Struct]:
    return msgspec.defstruct("Leaf", [("colour", Literal["red", "green"])], module="another.room")


class Branch(msgspec.Struct):
    """Holds itself, and anything."""

    leaf: Leaf
    anything: object
    raw: msgspec.Raw
    inner: list[Branch]
    above: Branch | None = None


class Wanted(msgspec.Struct):
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


def test_operations_have_names_that_are_unique_and_do_not_depend_on_their_handlers(openapi_document: Json) -> None:
    names = [operation["operationId"] for _, _, operation in operations(openapi_document)]
    assert len(set(names)) == len(names)
    assert "post_zones_zone_agents" in names
    alike = [Route("GET", path, unreachable_handler, "", None) for path in ("/a/b", "/a-b", "/{a}/b")]
    assert len({operation["operationId"] for _, _, operation in operations(openapi.describe(alike, "1"))}) == 3


def test_public_routes_need_no_token_and_all_others_name_their_scope(
    routes: list[Route], openapi_document: Json
) -> None:
    for route in routes:
        # A key is for its zone: where zones are crossed, only a token will do.
        ways = {None: [], ADMIN: ["bearer"]}.get(route.scope, ["bearer", "apiKey"])
        assert operation_of(openapi_document, route)["security"] == [{way: [route.scope]} for way in ways]
    scopes = {route.scope for route in routes}
    assert {None, LIFECYCLE, ADMIN} <= scopes


def test_the_document_has_the_structure_that_openapi_3_1_asks_for(openapi_document: Json) -> None:
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
        for status, answer in at(operation, "responses").items():
            assert STATUS.fullmatch(status)
            check_content(resolved(openapi_document, cast(Json, answer)))
        if "requestBody" in operation:
            check_content(at(operation, "requestBody"), needs_description=False)
    assert msgspec.json.decode(msgspec.json.encode(openapi_document)) == openapi_document


def test_every_reference_leads_to_something(openapi_document: Json) -> None:
    references = [node["$ref"] for node in nodes(openapi_document) if "$ref" in node]
    assert len(references) > 50
    for reference in references:
        assert resolved(openapi_document, {"$ref": reference})


def test_every_schema_is_one_that_json_schema_knows(openapi_document: Json) -> None:
    for schema in schemas(openapi_document):
        kinds = schema.get("type", [])
        assert TYPES.issuperset([kinds] if isinstance(kinds, str) else cast(list[str], kinds)), schema
        required, known = schema.get("required", []), schema.get("properties", {})
        assert set(cast(list[str], required)) <= set(cast(Json, known)), schema
        if "pattern" in schema:
            re.compile(str(schema["pattern"]))


def test_describing_a_table_twice_gives_the_same_document(routes: list[Route], openapi_document: Json) -> None:
    assert openapi.describe(routes, "1.2.3") == openapi_document


# -- its parts ---------------------------------------------------------------------------------------------------


def test_a_query_is_described_field_by_field_with_bounds_and_defaults(openapi_document: Json) -> None:
    listing = at(openapi_document, "paths", "/zones/{zone}/agents", "get")
    found = {str(one["name"]): one for one in items(listing, "parameters")}
    limit = at(found["limit"], "schema")
    assert (limit["type"], limit["minimum"], limit["maximum"], limit["default"]) == ("integer", 1, 500, 100)
    assert found["status"]["schema"] == {"$ref": "#/components/schemas/State"}
    assert at(found["cursor"], "schema")["type"] == "string"
    assert "ListQuery" not in at(openapi_document, "components", "schemas")
    document = openapi.describe([Route("GET", "/a", unreachable_handler, "", None, query=Wanted)], "1")
    assert [one.get("required", False) for one in items(at(document, "paths", "/a", "get"), "parameters")] == [
        True,
        False,
    ]


def test_whoever_refuses_an_idempotency_key_may_be_given_one_and_nobody_else(
    routes: list[Route], openapi_document: Json
) -> None:
    reference = {"$ref": "#/components/parameters/IdempotencyKey"}
    for route in routes:
        parameters = cast(list[object], operation_of(openapi_document, route).get("parameters", []))
        assert (reference in parameters) == ("idempotency_key_conflict" in route.errors)
    spawn = at(openapi_document, "paths", "/zones/{zone}/agents", "post")
    assert reference in cast(list[object], spawn["parameters"])


def test_what_is_made_or_ended_answers_with_each_status_it_may_answer_with(openapi_document: Json) -> None:
    spawn = at(openapi_document, "paths", "/zones/{zone}/agents", "post", "responses")
    assert schema_of(spawn["201"]) == schema_of(spawn["200"]) == {"$ref": "#/components/schemas/SessionView"}
    service = at(openapi_document, "paths", "/zones/{zone}/agent-services", "post", "responses")
    assert schema_of(service["201"]) == schema_of(service["200"])
    key = at(openapi_document, "paths", "/zones/{zone}/keys", "post", "responses")
    assert "200" not in key
    ending = at(openapi_document, "paths", "/zones/{zone}/agents/{id}", "delete", "responses")
    assert "content" not in cast(Json, ending["204"])
    assert schema_of(ending["200"]) == {"$ref": "#/components/schemas/Receipt"}


def test_every_route_with_a_token_lists_the_problems_it_may_answer_with(
    routes: list[Route], openapi_document: Json
) -> None:
    for route in routes:
        answers = at(operation_of(openapi_document, route), "responses")
        expected = {500, 503} if route.scope is None else {400, 401, 403, 404, 429, 500, 503}
        known = [meaning for code in route.errors if (meaning := error_codes.find_code(code))]
        expected |= {meaning.problem_type.status for meaning in known}
        for status in expected:
            assert "Problem" in str(schema_of(resolved(openapi_document, cast(Json, answers[str(status)]))))
        listed = operation_of(openapi_document, route).get("x-refusals", [])
        assert [one["error"] for one in cast(list[Json], listed)] == list(route.errors)


def test_free_form_json_stays_free_form_and_a_type_may_hold_itself() -> None:
    document = openapi.describe([Route("POST", "/a", unreachable_handler, "", None, body=Branch, response=Branch)], "1")
    fields = at(document, "components", "schemas", "Branch", "properties")
    assert "type" not in cast(Json, fields["raw"]) and "type" not in cast(Json, fields["anything"])
    example = at(document, "paths", "/a", "post", "requestBody", "content", "application/json")["example"]
    assert msgspec.json.decode(msgspec.json.encode(example), type=Branch).leaf == Leaf(0)


def test_two_rooms_may_call_different_things_by_one_name() -> None:
    kinds = (Leaf, other_leaf())
    document = openapi.describe(
        [Route("GET", f"/{number}", unreachable_handler, "", None, response=kind) for number, kind in enumerate(kinds)],
        "1",
    )
    described = at(document, "components", "schemas")
    assert len([name for name in described if name.endswith("Leaf")]) == 2


# -- the truth of it ---------------------------------------------------------------------------------------------


def test_every_example_is_a_value_of_the_type_it_stands_for(routes: list[Route], openapi_document: Json) -> None:
    checked = 0
    for route in routes:
        operation = operation_of(openapi_document, route)
        if route.body is not None:
            decodes(at(operation, "requestBody"), route.body)
            checked += 1
        for answer in at(operation, "responses").values():
            if "application/json" in cast(Json, cast(Json, answer).get("content", {})):
                decodes(cast(Json, answer), route.response)
                checked += 1
    assert checked > 12


def test_a_problem_looks_as_the_shell_sends_it() -> None:
    sent = problem_json.encode_body(rules.limit_exceeded(rules.MAX_CONCURRENT, 8, 8), EXAMPLE_ID)
    assert msgspec.json.decode(sent) == PROBLEM_EXAMPLE
    assert msgspec.json.decode(sent, type=Problem).bound == "max_concurrent"
    for kind in errors.concrete_types():
        members: dict[str, object] = {"field": "a.b"} if kind is errors.Invalid else {}
        shown = msgspec.json.decode(problem_json.encode_body(kind("code", "A sentence.", **members), "r"), type=Problem)
        assert (shown.error, shown.status, shown.title) == ("code", kind.status, kind.title)


def test_every_code_a_route_names_has_a_meaning(routes: list[Route]) -> None:
    unknown = {code for route in routes for code in route.errors if error_codes.find_code(code) is None}
    assert not unknown, f"say in http/openapi/error_codes.py what these mean: {unknown}"


def test_codes_mean_what_they_are_raised_as_and_none_is_missing_or_stale() -> None:
    raised = dict(raised_codes())
    told = {**error_codes.COMMON_CODES, **error_codes.ROUTE_CODES}
    missing = raised.keys() - told.keys()
    assert not missing, f"say in http/openapi/error_codes.py what these mean: {sorted(missing)}"
    wrong = {code for code, kind in raised.items() if told[code].problem_type.__name__ != kind}
    assert not wrong, f"listed under another kind than the one they are raised with: {wrong}"
    stale = told.keys() - raised.keys() - {bound.code for bound in rules.BOUNDS}
    assert not stale, f"nobody raises these any more: {stale}"


# -- reading -----------------------------------------------------------------------------------------------------


def raised_codes() -> Iterator[tuple[str, str]]:
    """Every code that is spelt where a problem is made, with the name of its kind."""
    kinds = {kind.__name__ for kind in errors.concrete_types() if kind.__module__ == errors.__name__}
    for module in parse_modules("src"):
        room = module.path.removeprefix("src/quarterdeck/").partition("/")[0]
        if room not in ("core", "engine", "store", "domain", "http") or module.path in NEVER_OVER_HTTP:
            continue
        for node in module.walk():
            if isinstance(node, ast.Call) and node.args and dotted(node.func).rpartition(".")[2] in kinds:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value, dotted(node.func).rpartition(".")[2]


def decodes(content: Json, kind: object) -> None:
    example = at(content, "content", "application/json")["example"]
    msgspec.json.decode(msgspec.json.encode(example), type=cast(type[object], kind))


def check_parameters(document: Json, path: str, operation: Json) -> None:
    found = [resolved(document, one) for one in cast(list[Json], operation.get("parameters", []))]
    places = [(one["name"], one["in"]) for one in found]
    assert len(set(places)) == len(places)
    assert {name for name, place in places if place == "path"} == set(re.findall(r"{(\w+)}", path))
    for one in found:
        assert one["in"] in ("path", "query", "header") and isinstance(one["schema"], dict)
        if one["in"] == "path":
            assert one["required"] is True and "pattern" in one["schema"]


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


def schema_of(answer: object) -> object:
    [media] = cast(Json, cast(Json, answer)["content"]).values()
    return cast(Json, media)["schema"]


def resolved(document: Json, given: Json) -> Json:
    if "$ref" not in given:
        return given
    place = str(given["$ref"])
    assert place.startswith("#/components/")
    return at(document, *place.split("/")[1:])


def nodes(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def schemas(document: Json) -> Iterator[Json]:
    """Every schema of the document, those within others too."""
    roots = [*at(document, "components", "schemas").values()]
    roots += [node["schema"] for node in nodes(document) if "schema" in node]
    for root in roots:
        yield from within(cast(Json, root))


def within(schema: Json) -> Iterator[Json]:
    yield schema
    children = [*cast(Json, schema.get("properties", {})).values(), *cast(list[object], schema.get("anyOf", []))]
    children += [schema[name] for name in ("items", "additionalProperties") if isinstance(schema.get(name), dict)]
    for child in children:
        yield from within(cast(Json, child))
