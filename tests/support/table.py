"""The route table as the server itself describes it, so that a test of every route meets the routes of tomorrow too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quarterdeck.core.ids import is_path_id
from tests.support.server import ServerProcess
from tests.support.zone import APP

NEEDED = {"application_id": APP, "scope": "workspace", "period": "month"}
"""What the parameters of a query mean that must be given."""


NUMBERED = r"{(?:fleet|member|message)}"
"""Where ids are small numbers."""
NO_NUMBER = "4711"
"""Of nothing that a test makes."""


@dataclass(frozen=True)
class TableRow:
    method: str
    path: str
    scope: str | None
    has_body: bool
    query: tuple[str, ...]
    example: Mapping[str, Any] | None = None
    """A body that the description calls an example."""
    needed: tuple[str, ...] = ()
    """The parameters of the query that must be given."""
    streams: bool = False
    power: str | None = None
    """What the caller's role must allow."""
    body_max: int = 256 * 1024
    """Bytes."""

    def at(self, zone: str, one: str = "no-such-session") -> str:
        """The path for a zone and for what is named in it, be it once or twice. Where a path takes numbers, an id that
        is none is nobody's number."""
        number = NO_NUMBER if is_path_id(one) and not one.isdigit() else one
        path = re.sub(NUMBERED, number, self.path.replace("{zone}", zone))
        return re.sub(r"{\w+}", one, path)

    def asked(self, zone: str, one: str = "no-such-session") -> dict[str, Any]:
        """A request that nothing is wrong with, for a client of the application `app`."""
        body = None if self.example is None else {**self.example}
        if body and "application_id" in body:
            body["application_id"] = APP
        assert set(self.needed) <= NEEDED.keys(), f"{self.path}: tell this test what its query means"
        params = {name: NEEDED[name] for name in self.needed}
        return {"method": self.method, "url": self.at(zone, one), "json": body, "params": params}

    def ways(self, zone: str, one: str = "no-such-session") -> list[dict[str, Any]]:
        """The same in every way it may be asked: for an answer, and for a stream."""
        plain = self.asked(zone, one)
        return [plain, {**plain, "headers": {"accept": "text/event-stream"}}] if self.streams else [plain]

    @property
    def in_zone(self) -> bool:
        return "{zone}" in self.path

    @property
    def in_callers_zone(self) -> bool:
        """Whether it acts in the zone of whoever asks, or in the one that a header names."""
        return self.path.startswith("/api/v1/")

    @property
    def names_somebody(self) -> bool:
        """Whether the path takes a name as issuers give them, which is more than an id."""
        return "{subject}" in self.path

    @property
    def names(self) -> str | None:
        """What the first id in the path is one of: `agents`, `keys`."""
        found = re.search(r"/([^/{}]+)/{(?!zone})\w+}", self.path)
        return found[1] if found else None

    @property
    def is_of_a_session(self) -> bool:
        """Whether a session is all that it names, if it names anything."""
        if self.in_callers_zone:
            return self.names is None
        return self.names in (None, "agents", "inbound", "outbound") and len(re.findall(r"{(?!zone})", self.path)) <= 1

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


async def table_of(server: ServerProcess) -> list[TableRow]:
    async with server.client("") as client:
        described = (await client.get("/openapi.json")).json()
    return [
        _row(method, path, told) for path, methods in described["paths"].items() for method, told in methods.items()
    ]


def _row(method: str, path: str, told: Mapping[str, Any]) -> TableRow:
    scopes = [scope for way in told["security"] for named in way.values() for scope in named]
    query = [parameter for parameter in told.get("parameters", ()) if parameter.get("in") == "query"]
    body = told.get("requestBody")
    answers = [kind for answer in told["responses"].values() for kind in answer.get("content", ())]
    return TableRow(
        method.upper(),
        path,
        scopes[0] if scopes else None,
        body is not None,
        tuple(parameter["name"] for parameter in query),
        body["content"]["application/json"]["example"] if body else None,
        tuple(parameter["name"] for parameter in query if parameter.get("required")),
        "text/event-stream" in answers,
        told.get("x-power"),
        told.get("x-body-max", 256 * 1024),
    )
