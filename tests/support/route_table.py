"""The route table as the server itself describes it, so that a test of every route meets the routes of tomorrow too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarterdeck.core.ids import is_path_id
from tests.support.server import ServerProcess
from tests.support.zone import APP

REQUIRED_QUERY = {"application_id": APP, "scope": "workspace", "period": "month"}
"""What the parameters of a query mean that must be given."""


NUMERIC_PARAMETER = r"{(?:fleet|member|message)}"
"""Where ids are small numbers."""
UNUSED_NUMBER = "4711"
"""Of nothing that a test makes."""


@dataclass(frozen=True)
class RouteRow:
    method: str
    path: str
    scope: str | None
    has_body: bool
    query: tuple[str, ...]
    example: Mapping[str, Any] | None = None
    """A body that the description calls an example."""
    required_query: tuple[str, ...] = ()
    """The parameters of the query that must be given."""
    has_stream: bool = False
    permission: str | None = None
    """What the caller's role must allow."""
    body_max: int = 256 * 1024
    """Bytes."""

    def path_for(self, zone: str, resource_id: str = "no-such-session") -> str:
        """The path for a zone and for what is named in it, be it once or twice. Where a path takes numbers, an id that
        is none is nobody's number."""
        number = UNUSED_NUMBER if is_path_id(resource_id) and not resource_id.isdigit() else resource_id
        path = re.sub(NUMERIC_PARAMETER, number, self.path.replace("{zone}", zone))
        return re.sub(r"{\w+}", resource_id, path)

    def request_for(self, zone: str, resource_id: str = "no-such-session") -> dict[str, Any]:
        """A request that nothing is wrong with, for a client of the application `app`."""
        body = None if self.example is None else {**self.example}
        if body and "application_id" in body:
            body["application_id"] = APP
        assert set(self.required_query) <= REQUIRED_QUERY.keys(), f"{self.path}: tell this test what its query means"
        params = {name: REQUIRED_QUERY[name] for name in self.required_query}
        return {"method": self.method, "url": self.path_for(zone, resource_id), "json": body, "params": params}

    def requests_for(self, zone: str, resource_id: str = "no-such-session") -> list[dict[str, Any]]:
        """The same in every way it may be asked: for an answer, and for a stream."""
        request = self.request_for(zone, resource_id)
        return [request, {**request, "headers": {"accept": "text/event-stream"}}] if self.has_stream else [request]

    @property
    def has_zone(self) -> bool:
        return "{zone}" in self.path

    @property
    def uses_caller_zone(self) -> bool:
        """Whether it acts in the zone of whoever asks, or in the one that a header names."""
        return self.path.startswith("/api/v1/")

    @property
    def has_subject(self) -> bool:
        """Whether the path takes a name as issuers give them, which is more than an id."""
        return "{subject}" in self.path

    @property
    def resource_name(self) -> str | None:
        """What the first id in the path is one of: `agents`, `keys`."""
        found = re.search(r"/([^/{}]+)/{(?!zone})\w+}", self.path)
        return found[1] if found else None

    @property
    def is_session_route(self) -> bool:
        """Whether a session is all that it names, if it names anything."""
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
