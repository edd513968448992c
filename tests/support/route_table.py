"""The routes from the server's OpenAPI document, so that tests of every route include new routes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarterdeck.core.ids import is_path_id
from tests.support.server import ServerProcess
from tests.support.zone import APP

REQUIRED_QUERY = {"application_id": APP, "scope": "workspace", "period": "month"}
"""Values for the required query parameters."""
NUMERIC_PARAMETER = r"{(?:fleet|member|message)}"
"""Path parameters whose ids are numbers."""
UNUSED_NUMBER = "4711"
"""A number that no test uses as an id."""


@dataclass(frozen=True)
class RouteRow:
    method: str
    path: str
    scope: str | None
    has_body: bool
    query: tuple[str, ...]
    example: Mapping[str, Any] | None = None
    """The example body of the OpenAPI document."""
    required_query: tuple[str, ...] = ()
    """The required query parameters."""
    has_stream: bool = False
    permission: str | None = None
    """The permission that the caller's role needs."""
    body_max: int = 256 * 1024
    """Bytes."""

    def path_for(self, zone: str, resource_id: str = "no-such-session") -> str:
        """The path for a zone and a resource id. Every other parameter gets the id. Where the path needs a number and
        the id is not one, it gets an unused number."""
        number = UNUSED_NUMBER if is_path_id(resource_id) and not resource_id.isdigit() else resource_id
        path = re.sub(NUMERIC_PARAMETER, number, self.path.replace("{zone}", zone))
        return re.sub(r"{\w+}", resource_id, path)

    def request_for(self, zone: str, resource_id: str = "no-such-session") -> dict[str, Any]:
        """A valid request for a client of the application `app`."""
        body = None if self.example is None else {**self.example}
        if body and "application_id" in body:
            body["application_id"] = APP
        assert set(self.required_query) <= REQUIRED_QUERY.keys(), (
            f"{self.path}: add values for its required query to REQUIRED_QUERY"
        )
        params = {name: REQUIRED_QUERY[name] for name in self.required_query}
        return {"method": self.method, "url": self.path_for(zone, resource_id), "json": body, "params": params}

    def requests_for(self, zone: str, resource_id: str = "no-such-session") -> list[dict[str, Any]]:
        """The request in each variant: for a response and, if the route has one, for an event stream."""
        request = self.request_for(zone, resource_id)
        return [request, {**request, "headers": {"accept": "text/event-stream"}}] if self.has_stream else [request]

    @property
    def has_zone(self) -> bool:
        return "{zone}" in self.path

    @property
    def uses_caller_zone(self) -> bool:
        """Whether the zone is the caller's, or one that a header names, instead of one in the path."""
        return self.path.startswith("/api/v1/")

    @property
    def has_subject(self) -> bool:
        """Whether the path has a subject of a token. Subjects allow more characters than ids."""
        return "{subject}" in self.path

    @property
    def resource_name(self) -> str | None:
        """The collection of the first id in the path, such as `agents` or `keys`."""
        found = re.search(r"/([^/{}]+)/{(?!zone})\w+}", self.path)
        return found[1] if found else None

    @property
    def is_session_route(self) -> bool:
        """Whether the path names at most one resource, and that is a session."""
        if self.uses_caller_zone:
            return self.resource_name is None
        return (
            self.resource_name in (None, "agents", "inbound", "outbound")
            and len(re.findall(r"{(?!zone})", self.path)) <= 1
        )

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


async def read_route_table(server: ServerProcess) -> list[RouteRow]:
    async with server.client("") as client:
        document = (await client.get("/openapi.json")).json()
    return [
        _to_route_row(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _to_route_row(method: str, path: str, operation: Mapping[str, Any]) -> RouteRow:
    scopes = [scope for security in operation["security"] for scope_list in security.values() for scope in scope_list]
    query = [parameter for parameter in operation.get("parameters", ()) if parameter.get("in") == "query"]
    body = operation.get("requestBody")
    content_types = [
        content_type for response in operation["responses"].values() for content_type in response.get("content", ())
    ]
    return RouteRow(
        method.upper(),
        path,
        scopes[0] if scopes else None,
        body is not None,
        tuple(parameter["name"] for parameter in query),
        body["content"]["application/json"]["example"] if body else None,
        tuple(parameter["name"] for parameter in query if parameter.get("required")),
        "text/event-stream" in content_types,
        operation.get("x-power"),
        operation.get("x-body-max", 256 * 1024),
    )
