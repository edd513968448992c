"""Finds the server that flags and environment variables describe, and connects to it.

The CLI uses `connect_server`. The SDK uses `locate`, and `locate_running` to find the server again after a restart.
"""

# No `pathlib`: its import time would slow down every command.
# ruff: noqa: PTH116, PTH120

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from quarterdeck.client.api import ApiClient
from quarterdeck.client.data_dir import DataDir, ServerRecord, resolve_data_dir
from quarterdeck.client.http_types import Address, TimedOut, Unreachable, parse_address

if TYPE_CHECKING:
    # The pool imports asyncio, which the CLI does not need.
    from quarterdeck.client.pool import PeerCheck

DEFAULT_TIMEOUT_SECONDS = 30.0
_DARWIN_SOL_LOCAL = 0
_DARWIN_LOCAL_PEERPID = 2


class UntrustedServer(Unreachable):
    """The socket belongs to a process of another user, so no token may be sent to it."""


class ServerLocation(NamedTuple):
    """What the caller specifies about the server. None means not specified."""

    data: str | None = None
    url: str | None = None
    token: str | None = None
    timeout: float | None = None

    def data_dir(self, environ: Mapping[str, str]) -> DataDir:
        return resolve_data_dir(self.data, environ)

    def explicit_url(self, environ: Mapping[str, str]) -> str | None:
        """The URL from the caller or QD_URL. If there is one, the data directory's server is not used."""
        return self.url or environ.get("QD_URL") or None


def connect_server(location: ServerLocation, environ: Mapping[str, str], report: Callable[[str], None]) -> ApiClient:
    """Connect to the server. Starts the data directory's server if it is not running, unless it uses PostgreSQL.

    If a URL is given, returns a client for it without connecting.
    """
    url = location.explicit_url(environ)
    if url is not None:
        return client_for_url(location, environ, url)
    data_dir = location.data_dir(environ)
    server = connect_data_dir(location, environ, data_dir)
    if server is None:
        server = _start_and_connect(location, environ, data_dir, report)
    return server


def connect_running_server(location: ServerLocation, environ: Mapping[str, str]) -> ApiClient | None:
    """Connect to the server, or return None if it is not running.

    Does not start a server, because it may have been stopped on purpose. If a URL is given, returns a client for it
    without connecting.
    """
    url = location.explicit_url(environ)
    return (
        client_for_url(location, environ, url)
        if url
        else connect_data_dir(location, environ, location.data_dir(environ))
    )


def client_for_url(location: ServerLocation, environ: Mapping[str, str], url: str) -> ApiClient:
    """Create a client for the server at this URL. Does not connect."""
    token = location.token or environ.get("QD_TOKEN") or _token_for_url(location, environ, url)
    return ApiClient(parse_address(url), token, location.timeout or DEFAULT_TIMEOUT_SECONDS, _trace_parent(environ))


def connect_data_dir(location: ServerLocation, environ: Mapping[str, str], data_dir: DataDir) -> ApiClient | None:
    """Connect to a directory's running server. None if no process accepts a connection.

    Raises `UntrustedServer` if only an untrusted process accepts one: a server started now would most likely find its
    socket path taken by that process.
    """
    record = data_dir.read_record()
    if record is None:
        return None
    untrusted_error: UntrustedServer | None = None
    for address in _candidate_addresses(data_dir, record):
        # Read the token every time: the server renews it at each start, before it becomes ready.
        token = location.token or environ.get("QD_TOKEN") or data_dir.read_admin_token()
        server = ApiClient(address, token, location.timeout or DEFAULT_TIMEOUT_SECONDS, _trace_parent(environ))
        try:
            connection = server.connection.open()
            if address.scheme == "unix":
                require_trusted_server(connection, address.host, data_dir)
        except UntrustedServer as error:
            untrusted_error = error
            continue
        except (Unreachable, TimedOut):
            continue
        return server
    if untrusted_error is not None:
        raise untrusted_error
    return None


def require_trusted_server(connection: socket.socket, path: str, data_dir: DataDir) -> None:
    """Close the connection and raise `UntrustedServer` unless the listener belongs to this user, to the owner of the
    data directory or to root.

    The caller sends a token next, usually an administrator's.
    """
    trusted_uids = (os.getuid(), os.stat(data_dir.path).st_uid, 0)
    uid = listener_uid(connection)
    if uid is not None:
        reason = None if uid in trusted_uids else f"another user (uid {uid}) is listening there"
    else:
        # The system does not report the uid. Require instead that only trusted users can create sockets there.
        directory = os.lstat(os.path.dirname(path))
        is_trusted = directory.st_uid in trusted_uids and not directory.st_mode & 0o022
        reason = None if is_trusted else "another user can create sockets in that directory"
    if reason is not None:
        connection.close()
        raise UntrustedServer(
            "server_of_a_stranger",
            f"Nothing was sent to {path}, the socket of {data_dir.path}: {reason}. Set XDG_RUNTIME_DIR to a directory "
            "that you own, and start a server with `qd up`.",
        )


def listener_pid(connection: socket.socket) -> int | None:
    """The pid of the process that called `listen`. None if the socket is not a unix socket or the pid is unknown."""
    if connection.family != socket.AF_UNIX:
        return None
    if sys.platform == "linux":
        pid = _credentials(connection)[0]
    elif sys.platform == "darwin":
        pid = connection.getsockopt(_DARWIN_SOL_LOCAL, _DARWIN_LOCAL_PEERPID)
    else:
        return None
    # 0: the process is in another pid namespace and has no pid in this one.
    return pid or None


def listener_uid(connection: socket.socket) -> int | None:
    """The uid of the process that called `listen`. None if the socket is not a unix socket or the uid is unknown."""
    if connection.family != socket.AF_UNIX or sys.platform != "linux":
        return None
    return _credentials(connection)[1]


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """pid and uid: the first two of the three 4-byte integers of `struct ucred`."""
    if sys.platform != "linux":
        raise NotImplementedError
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(data[:4], sys.byteorder), int.from_bytes(data[4:8], sys.byteorder)


def _candidate_addresses(data_dir: DataDir, record: ServerRecord) -> Iterator[Address]:
    """Yield the addresses to try, the socket first.

    The socket's name is derived from the directory, so a trusted user's process that listens there is this
    directory's server. A different program may be listening on the TCP port by now, so the port is used only while a
    process holds `server.lock` and the recorded pid exists.
    """
    if record.socket:
        yield Address("unix", record.socket)
    if record.url and record.pid_exists() and data_dir.has_running_server():
        yield parse_address(record.url)


def wait_for_server(location: ServerLocation, environ: Mapping[str, str], data_dir: DataDir) -> ApiClient | None:
    """Connect to a directory's server, waiting while it starts. None if no process holds `server.lock`."""
    from quarterdeck.client import autostart

    return autostart.wait_for_lock_holder(data_dir, lambda: connect_data_dir(location, environ, data_dir))


def _start_and_connect(
    location: ServerLocation, environ: Mapping[str, str], data_dir: DataDir, report: Callable[[str], None]
) -> ApiClient:
    from quarterdeck.client import autostart  # needed only if no server answered

    server = autostart.ensure_server(data_dir, report, lambda: connect_data_dir(location, environ, data_dir))
    if server is None:
        raise Unreachable(
            "server_unreachable",
            f"The server of {data_dir.path} started but accepts no connections. See {data_dir.log_path}.",
        )
    return server


def _trace_parent(environ: Mapping[str, str]) -> str | None:
    """The trace context in TRACEPARENT. None if it is not set or not valid."""
    traceparent = environ.get("TRACEPARENT")
    if not traceparent:
        return None
    from quarterdeck.core.trace_context import parse_traceparent  # imported here because few commands are traced

    return parse_traceparent(traceparent)


def _token_for_url(location: ServerLocation, environ: Mapping[str, str], url: str) -> str | None:
    """The directory's admin token, if `location` names the directory or the URL belongs to the directory's server.

    Otherwise None: a URL alone must not cause an administrator's token to be sent to a different server.
    """
    data_dir = location.data_dir(environ)
    record = data_dir.read_record()
    if location.data or (record is not None and record.url and _is_same_listener(url, record.url)):
        return data_dir.read_admin_token()
    return None


def _is_same_listener(url: str, recorded_url: str) -> bool:
    """Whether both URLs name the same listener. `localhost` in `url` counts as 127.0.0.1."""
    address = parse_address(url)
    host = "127.0.0.1" if address.host == "localhost" else address.host
    return address._replace(host=host) == parse_address(recorded_url)


DEFAULT_ZONE = "default"


class LocatedServer(NamedTuple):
    address: Address
    token: str | None
    trace: str | None
    check_peer: PeerCheck | None
    """Raises if the listening process must not receive a token. None if there is nothing to check."""


def locate(location: ServerLocation, report: Callable[[str], None]) -> LocatedServer:
    """Find the server. Starts it in the same cases as `connect_server`. Blocks."""
    if (url := location.explicit_url(os.environ)) is not None:
        return _to_located(client_for_url(location, os.environ, url), None)
    return _to_located(connect_server(location, os.environ, report), location.data_dir(os.environ))


def locate_running(location: ServerLocation) -> LocatedServer | None:
    """Find the server without starting it, as `connect_running_server` does. Blocks."""
    if location.explicit_url(os.environ) is not None:
        return locate(location, lambda _: None)
    server = connect_running_server(location, os.environ)
    return None if server is None else _to_located(server, location.data_dir(os.environ))


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
