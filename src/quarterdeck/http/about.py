"""What serves here: which release, on which engine, how its tables stand to it, and what time it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from quarterdeck.core.clock import iso
from quarterdeck.core.routing import LIFECYCLE, Call, Route
from quarterdeck.engine.queries import Q
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.http.system_routes import CheckBearer
from quarterdeck.store import migrate


class About(msgspec.Struct, frozen=True):
    version: str
    database: Literal["sqlite", "postgresql"]
    revision: str
    """Of the tables."""
    head: str
    """The revision that this release brings them to."""
    complaint: str | None
    """What is wrong with the tables, and what mends it."""
    now: str
    """By the database's clock, which is the one that decides."""


@dataclass(frozen=True, slots=True)
class AboutDesk:
    engine: Engine
    check_bearer: CheckBearer
    version: str
    database: Literal["sqlite", "postgresql"]

    async def about(self, call: Call) -> About:
        await self.check_bearer(call.caller)

        async def read(tx: Tx) -> About:
            [[row]] = await tx.read(Q.schema_served())
            revision = str(row[0])
            wrong = migrate.complaint(revision)
            return About(self.version, self.database, revision, migrate.revisions()[-1], wrong, iso(tx.now))

        return await self.engine.read(read)


def routes(desk: AboutDesk) -> list[Route]:
    return [
        Route(
            "GET", "/about", desk.about, "What serves here, on which tables, and its clock", LIFECYCLE,
            answer=About, tags=("server",),
        ),
    ]  # fmt: skip
