"""From flags and environment to a server that answers."""

# Without `pathlib`: importing it costs every command.
# ruff: noqa: PTH116, PTH120

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from quarterdeck.client.api import Server
from quarterdeck.client.data_dir import Place, Record, place_of
from quarterdeck.client.http_types import Address, TimedOut, Unreachable, parse_address
from quarterdeck.client.socket_peer import listener_uid

if TYPE_CHECKING:
    # The pool imports asyncio, which the CLI does not need.
    from quarterdeck.client.pool import Check

TIMEOUT = 30.0


class Stranger(Unreachable):
    """Somebody listens where the server did, and it is not one whom a token may be shown."""


class Where(NamedTuple):
    """What a caller said about the server it wants; what is None was not said."""

    data: str | None = None
    url: str | None = None
    token: str | None = None
    timeout: float | None = None

    def place(self, environ: Mapping[str, str]) -> Place:
        return place_of(self.data, environ)

    def address(self, environ: Mapping[str, str]) -> str | None:
        """The address that was given, if one was: then the data directory decides nothing."""
        return self.url or environ.get("QD_URL") or None


def reach(where: Where, environ: Mapping[str, str], say: Callable[[str], None]) -> Server:
    """The server asked for, connected; started first where none runs and the directory's database is SQLite."""
    url = where.address(environ)
    if url is not None:
        return at_address(where, environ, url)
    place = where.place(environ)
    found = of_place(where, environ, place)
    if found is None:
        found = _started(where, environ, place, say)
    return found


def again(where: Where, environ: Mapping[str, str]) -> Server | None:
    """The server asked for, if it is there; never started, because whoever stopped it may have meant to."""
    url = where.address(environ)
    return at_address(where, environ, url) if url else of_place(where, environ, where.place(environ))


def at_address(where: Where, environ: Mapping[str, str], url: str) -> Server:
    """A server at an address that was given: it is used as it is, and never started."""
    token = where.token or environ.get("QD_TOKEN") or _token_for(where, environ, url)
    return Server(parse_address(url), token, where.timeout or TIMEOUT, _trace(environ))


def of_place(where: Where, environ: Mapping[str, str], place: Place) -> Server | None:
    """The running server of a directory, connected; None where none answers. Where nobody but a stranger does,
    that is told: a server started now would most likely find its socket's place taken by the same stranger."""
    record = place.record()
    if record is None:
        return None
    stranger: Stranger | None = None
    for address in _addresses(place, record):
        # Read anew for each start: the server renews it before it becomes ready.
        token = where.token or environ.get("QD_TOKEN") or place.admin_token()
        server = Server(address, token, where.timeout or TIMEOUT, _trace(environ))
        try:
            connection = server.connection.open()
            if address.scheme == "unix":
                refuse_stranger(connection, address.host, place)
        except Stranger as refused:
            stranger = refused
            continue
        except (Unreachable, TimedOut):
            continue
        return server
    if stranger is not None:
        raise stranger
    return None


def refuse_stranger(connection: socket.socket, path: str, place: Place) -> None:
    """Raises `Stranger` where a socket is not served by us, by the owner of the directory or by root: the next thing
    sent would be an administrator's token. Closes the connection then."""
    trusted = (os.getuid(), os.stat(place.path).st_uid, 0)
    uid = listener_uid(connection)
    if uid is not None:
        doubt = None if uid in trusted else f"another user (uid {uid}) listens there now"
    else:
        # The next best evidence: nobody but a trusted user can have put a socket into that directory.
        folder = os.lstat(os.path.dirname(path))
        is_theirs = folder.st_uid in trusted and not folder.st_mode & 0o022
        doubt = None if is_theirs else "by its directory another user may listen there now"
    if doubt is not None:
        connection.close()
        raise Stranger(
            "server_of_a_stranger",
            f"The server of {place.path} listened at {path}, and {doubt}: nothing was sent. Start a server with "
            "`qd up`, with XDG_RUNTIME_DIR set to a directory of your own.",
        )


def _addresses(place: Place, record: Record) -> Iterator[Address]:
    """The socket first. Its name is made from the directory, so whoever of the users we trust listens there is
    this directory's server; a TCP port may be a stranger's by now, and is trusted (with our token) only while
    the directory is held and the process of the record lives."""
    if record.socket:
        yield Address("unix", record.socket)
    if record.url and record.is_alive() and place.is_served():
        yield parse_address(record.url)


def awaited(where: Where, environ: Mapping[str, str], place: Place) -> Server | None:
    """The server of a directory, also one that is just starting; None when none holds the directory (any
    more)."""
    from quarterdeck.client import autostart

    return autostart.await_other(place, lambda: of_place(where, environ, place))


def _started(where: Where, environ: Mapping[str, str], place: Place, say: Callable[[str], None]) -> Server:
    from quarterdeck.client import autostart  # only where no server answered

    server = autostart.ensure(place, say, lambda: of_place(where, environ, place))
    if server is None:
        raise Unreachable(
            "server_unreachable", f"The server of {place.path} was ready and does not answer; see {place.log}."
        )
    return server


def _trace(environ: Mapping[str, str]) -> str | None:
    """The trace this command is part of, if whoever started it said so. What cannot be understood is not passed on."""
    given = environ.get("TRACEPARENT")
    if not given:
        return None
    from quarterdeck.core.trace_context import parent_of  # few commands are traced, and every one is in a hurry

    return parent_of(given)


def _token_for(where: Where, environ: Mapping[str, str], url: str) -> str | None:
    """The directory's admin token, if the address is this directory's server or the directory was named too.

    Else an address from a config file or an environment variable would be enough to make us send an
    administrator's token to a stranger.
    """
    place = where.place(environ)
    record = place.record()
    if where.data or (record is not None and record.url and _same(url, record.url)):
        return place.admin_token()
    return None


def _same(one: str, other: str) -> bool:
    """Whether two URLs name one listener of this machine, by whichever name of its loopback."""
    first, second = parse_address(one), parse_address(other)
    loopback = {"localhost": "127.0.0.1"}
    return first._replace(host=loopback.get(first.host, first.host)) == second


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
        return _of(at_address(where, os.environ, url), None)
    return _of(reach(where, os.environ, say), where.place(os.environ))


def locate_again(where: Where) -> Located | None:
    """The same, if it is there: never started, because whoever stopped it may have meant to. Blocks."""
    if where.address(os.environ) is not None:
        return locate(where, lambda _: None)
    found = again(where, os.environ)
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
    return lambda connection: refuse_stranger(connection, address.host, place)
