"""Quarterdeck's own server without the second wall: no policies are asked for, and no transaction names its zones.

Only to be measured, on a database whose row-level security the benchmark has switched off: the control of `walls`.
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
    """In place of the question whether the wall would hold this role."""


def no_zone_setting(store: PostgresStore, zones: Collection[str]) -> list[BoundStatement]:
    """In place of the zones that a transaction was authenticated for."""
    return []


def main() -> int:
    with (
        mock.patch.object(postgres, "require_row_security", skip_row_security_check),
        mock.patch.object(PostgresStore, "_zone_setting", no_zone_setting),
    ):
        return __main__.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
