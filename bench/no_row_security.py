"""A Quarterdeck server without row-level security: it does not require policies, and transactions set no zones.

It is the control of `row_security`, which disables row-level security in the database first.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from unittest import mock

from quarterdeck import __main__
from quarterdeck.store import postgres
from quarterdeck.store.postgres import PostgresStore
from quarterdeck.store.postgres_roles import Role
from quarterdeck.store.sql import BoundStatement


async def skip_row_security_check(url: str, role: Role) -> None:
    """Replaces the check that row security applies to this role."""


def no_zone_setting(store: PostgresStore, zones: Collection[str]) -> list[BoundStatement]:
    """Replaces the statement that sets the zones of a transaction."""
    return []


def main() -> int:
    with (
        mock.patch.object(postgres, "require_row_security", skip_row_security_check),
        mock.patch.object(PostgresStore, "_zone_setting", no_zone_setting),
    ):
        return __main__.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
