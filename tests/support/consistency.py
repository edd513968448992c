"""Consistency checks of a database after failures."""

from __future__ import annotations

from tests.support.runtime import DirectDatabase, assert_counts_match_rows
from tests.support.server import Launch, Servers


async def assert_check_passes(servers: Servers, launch: Launch) -> None:
    """Assert that `qd check` finds no problem and that the counters equal the counted rows."""
    database_arguments = [] if launch.database is None else ["--database", launch.database]
    result = await servers.run_command(launch, "check", *database_arguments)
    assert result.exit_code == 0, result.log_text
    assert "consistent: " in result.log_text
    assert_counts_match_rows(DirectDatabase(launch.database_url))
