"""From flags and environment to a server that answers."""

# Without `pathlib`: importing it costs every command.
# ruff: noqa: PTH116, PTH120

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from quarterdeck.client.api import ApiClient
from quarterdeck.client.data_dir import DataDir, ServerRecord, resolve_data_dir
from quarterdeck.client.http_types import Address, TimedOut, Unreachable, parse_address
from quarterdeck.client.socket_peer import listener_uid

if TYPE_CHECKING:
    # The pool imports asyncio, which the CLI does not need.
    from quarterdeck.client.pool import PeerCheck

DEFAULT_TIMEOUT_SECONDS = 30.0


class UntrustedServer(Unreachable):
    """Somebody listens where the server did, and it is not one whom a token may be shown."""


class ServerLocation(NamedTuple):
    """What a caller said about the server it wants; what is None was not said."""

    data: str | None = None
    url: str | None = None
    token: str | None = None
    timeout: float | None = None

    def data_dir(self, environ: Mapping[str, str]) -> DataDir:
        return resolve_data_dir(self.data, environ)

    def explicit_url(self, environ: Mapping[str, str]) -> str | None:
        """The address that was given, if one was: then the data directory decides nothing."""
        return self.url or environ.get("QD_URL") or None


def connect_server(location: ServerLocation, environ: Mapping[str, str], report: Callable[[str], None]) -> ApiClient:
    """The server asked for, connected; started first where none runs and the directory's database is SQLite."""
    url = location.explicit_url(environ)
    if url is not None:
        return client_for_url(location, environ, url)
    data_dir = location.data_dir(environ)
    found = connect_data_dir(location, environ, data_dir)
    if found is None:
        found = _start_and_connect(location, environ, data_dir, report)
    return found


def connect_running_server(location: ServerLocation, environ: Mapping[str, str]) -> ApiClient | None:
    """The server asked for, if it is there; never started, because whoever stopped it may have meant to."""
    url = location.explicit_url(environ)
    return (
        client_for_url(location, environ, url)
        if url
        else connect_data_dir(location, environ, location.data_dir(environ))
    )


def client_for_url(location: ServerLocation, environ: Mapping[str, str], url: str) -> ApiClient:
    """A server at an address that was given: it is used as it is, and never started."""
    token = location.token or environ.get("QD_TOKEN") or _token_for_url(location, environ, url)
    return ApiClient(parse_address(url), token, location.timeout or DEFAULT_TIMEOUT_SECONDS, _trace_parent(environ))


def connect_data_dir(location: ServerLocation, environ: Mapping[str, str], data_dir: DataDir) -> ApiClient | None:
    """The running server of a directory, connected; None where none answers. Where nobody but a stranger does,
    that is told: a server started now would most likely find its socket's place taken by the same stranger."""
    record = data_dir.read_record()
    if record is None:
        return None
    untrusted: UntrustedServer | None = None
    for address in _candidate_addresses(data_dir, record):
        # Read anew for each start: the server renews it before it becomes ready.
        token = location.token or environ.get("QD_TOKEN") or data_dir.read_admin_token()
        server = ApiClient(address, token, location.timeout or DEFAULT_TIMEOUT_SECONDS, _trace_parent(environ))
        try:
            connection = server.connection.open()
            if address.scheme == "unix":
                require_trusted_server(connection, address.host, data_dir)
        except UntrustedServer as error:
            untrusted = error
            continue
        except (Unreachable, TimedOut):
            continue
        return server
    if untrusted is not None:
        raise untrusted
    return None


def require_trusted_server(connection: socket.socket, path: str, data_dir: DataDir) -> None:
    """Raises `Stranger` where a socket is not served by us, by the owner of the directory or by root: the next thing
    sent would be an administrator's token. Closes the connection then."""
    trusted = (os.getuid(), os.stat(data_dir.path).st_uid, 0)
    uid = listener_uid(connection)
    if uid is not None:
        reason = None if uid in trusted else f"another user (uid {uid}) listens there now"
    else:
        # The next best evidence: nobody but a trusted user can have put a socket into that directory.
        directory = os.lstat(os.path.dirname(path))
        is_trusted = directory.st_uid in trusted and not directory.st_mode & 0o022
        reason = None if is_trusted else "by its directory another user may listen there now"
    if reason is not None:
        connection.close()
        raise UntrustedServer(
            "server_of_a_stranger",
            f"The server of {data_dir.path} listened at {path}, and {reason}: nothing was sent. Start a server with "
            "`qd up`, with XDG_RUNTIME_DIR set to a directory of your own.",
        )


def _candidate_addresses(data_dir: DataDir, record: ServerRecord) -> Iterator[Address]:
    """The socket first. Its name is made from the directory, so whoever of the users we trust listens there is
    this directory's server; a TCP port may be a stranger's by now, and is trusted (with our token) only while
    the directory is held and the process of the record lives."""
    if record.socket:
        yield Address("unix", record.socket)
    if record.url and record.is_alive() and data_dir.has_running_server():
        yield parse_address(record.url)


def wait_for_server(location: ServerLocation, environ: Mapping[str, str], data_dir: DataDir) -> ApiClient | None:
    """The server of a directory, also one that is just starting; None when none holds the directory (any
    more)."""
    from quarterdeck.client import autostart

    return autostart.wait_for_other(data_dir, lambda: connect_data_dir(location, environ, data_dir))


def _start_and_connect(
    location: ServerLocation, environ: Mapping[str, str], data_dir: DataDir, report: Callable[[str], None]
) -> ApiClient:
    from quarterdeck.client import autostart  # only where no server answered

    server = autostart.ensure_server(data_dir, report, lambda: connect_data_dir(location, environ, data_dir))
    if server is None:
        raise Unreachable(
            "server_unreachable", f"The server of {data_dir.path} was ready and does not answer; see {data_dir.log}."
        )
    return server


def _trace_parent(environ: Mapping[str, str]) -> str | None:
    """The trace this command is part of, if whoever started it said so. What cannot be understood is not passed on."""
    traceparent = environ.get("TRACEPARENT")
    if not traceparent:
        return None
    from quarterdeck.core.trace_context import parse_traceparent  # few commands are traced, and every one is in a hurry

    return parse_traceparent(traceparent)


def _token_for_url(location: ServerLocation, environ: Mapping[str, str], url: str) -> str | None:
    """The directory's admin token, if the address is this directory's server or the directory was named too.

    Else an address from a config file or an environment variable would be enough to make us send an
    administrator's token to a stranger.
    """
    data_dir = location.data_dir(environ)
    record = data_dir.read_record()
    if location.data or (record is not None and record.url and _is_same_listener(url, record.url)):
        return data_dir.read_admin_token()
    return None


def _is_same_listener(first_url: str, second_url: str) -> bool:
    """Whether two URLs name one listener of this machine, by whichever name of its loopback."""
    first, second = parse_address(first_url), parse_address(second_url)
    loopback = {"localhost": "127.0.0.1"}
    return first._replace(host=loopback.get(first.host, first.host)) == second


DEFAULT_ZONE = "default"


class LocatedServer(NamedTuple):
    address: Address
    token: str | None
    trace: str | None
    check_peer: PeerCheck | None
    """Speaks up if somebody listens there who is not to be shown a token."""


def locate(location: ServerLocation, report: Callable[[str], None]) -> LocatedServer:
    """The server asked for, started first where none runs and that is allowed. Blocks."""
    if (url := location.explicit_url(os.environ)) is not None:
        return _to_located(client_for_url(location, os.environ, url), None)
    return _to_located(connect_server(location, os.environ, report), location.data_dir(os.environ))


def locate_running(location: ServerLocation) -> LocatedServer | None:
    """The same, if it is there: never started, because whoever stopped it may have meant to. Blocks."""
    if location.explicit_url(os.environ) is not None:
        return locate(location, lambda _: None)
    found = connect_running_server(location, os.environ)
    return None if found is None else _to_located(found, location.data_dir(os.environ))


def resolve_zone(zone: str | None) -> str:
    return zone or os.environ.get("QD_ZONE") or DEFAULT_ZONE


def _to_located(server: ApiClient, data_dir: DataDir | None) -> LocatedServer:
    server.connection.close()
    check_peer = None if data_dir is None else _peer_check(data_dir, server.address)
    return LocatedServer(server.address, server.token, server.trace, check_peer)


def _peer_check(data_dir: DataDir, address: Address) -> PeerCheck | None:
    if address.scheme != "unix":
        return None
    return lambda connection: require_trusted_server(connection, address.host, data_dir)
