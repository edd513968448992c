"""What an operator would ask of a database after a bad night."""

from __future__ import annotations

from tests.support.keel import Side, assert_counts_are_what_the_rows_say
from tests.support.server import Launch, Servers


async def assert_check_finds_nothing(servers: Servers, launch: Launch) -> None:
    """`qd check` says that all is well, and those who wrote the tests count to the same."""
    named = [] if launch.database is None else ["--database", launch.database]
    checked = await servers.command(launch, "check", *named)
    assert checked.exit_code == 0, checked.log_text
    assert "all is well" in checked.log_text
    assert_counts_are_what_the_rows_say(Side(launch.database_url))
