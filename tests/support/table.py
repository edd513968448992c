"""The route table as the server itself describes it, so that a test of every route meets the routes of tomorrow too."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.server import ServerProcess


@dataclass(frozen=True)
class TableRow:
    method: str
    path: str
    scope: str | None
    has_body: bool
    query: tuple[str, ...]

    def at(self, zone: str, session: str = "no-such-session") -> str:
        """The path for a zone and a session."""
        filled = self.path.replace("{zone}", zone).replace("{id}", session)
        assert "{" not in filled, f"{self.path}: tell this test what its parameters mean"
        return filled

    @property
    def in_zone(self) -> bool:
        return "{zone}" in self.path

    @property
    def names_session(self) -> bool:
        return "{id}" in self.path

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


async def table_of(server: ServerProcess) -> list[TableRow]:
    async with server.client("") as client:
        described = (await client.get("/openapi.json")).json()
    rows = []
    for path, methods in described["paths"].items():
        for method, told in methods.items():
            scopes = [scope for way in told["security"] for named in way.values() for scope in named]
            query = [p["name"] for p in told.get("parameters", ()) if p.get("in") == "query"]
            rows.append(
                TableRow(
                    method.upper(), path, scopes[0] if scopes else None, "requestBody" in told, tuple(query)
                )
            )
    return rows
