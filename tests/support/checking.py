"""What an operator would ask of a database after a bad night."""

from __future__ import annotations

from tests.support.keel import Side, assert_counts_are_what_the_rows_say
from tests.support.server import Launch, Servers


async def assert_check_finds_nothing(servers: Servers, launch: Launch) -> None:
    """Counters agree with the rows, sessions with their parents."""
    assert_counts_are_what_the_rows_say(Side(launch.database_url))
