"""The same way to a server for those who stay connected: where it is, whom it must belong to, and what to show it.

The SDK finds its server as the CLI does. It stays longer, though: a server may be started again elsewhere meanwhile,
and the administrator's token of a directory is renewed every day. So what was found can be looked for again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from quarterdeck.client import discovery
from quarterdeck.client.api import Server
from quarterdeck.client.data_dir import Place
from quarterdeck.client.discovery import Where
from quarterdeck.client.http_sync import Address
from quarterdeck.client.pool import Check

DEFAULT_ZONE = "default"


class Located(NamedTuple):
    address: Address
    token: str | None
    trace: str | None
    check: Check | None
    """Speaks up if somebody listens there who is not to be shown a token."""


def locate(where: Where, say: Callable[[str], None]) -> Located:
    """The server asked for, started first where none runs and that is allowed. Blocks."""
    if (url := where.address(os.environ)) is not None:
        return _of(discovery.at_address(where, os.environ, url), None)
    return _of(discovery.reach(where, os.environ, say), where.place(os.environ))


def locate_again(where: Where) -> Located | None:
    """The same, if it is there: never started, because whoever stopped it may have meant to. Blocks."""
    if where.address(os.environ) is not None:
        return locate(where, lambda _: None)
    found = discovery.again(where, os.environ)
    return None if found is None else _of(found, where.place(os.environ))


def zone_named(given: str | None) -> str:
    return given or os.environ.get("QD_ZONE") or DEFAULT_ZONE


def _of(server: Server, place: Place | None) -> Located:
    server.connection.close()
    check = None if place is None else _trusting(place, server.address)
    return Located(server.address, server.token, server.trace, check)


def _trusting(place: Place, address: Address) -> Check | None:
    if address.scheme != "unix":
        return None
    return lambda connection: discovery.refuse_stranger(connection, address.host, place)
