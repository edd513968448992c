"""Resolves names, and decides which addresses may be called."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from weakref import WeakValueDictionary

from quarterdeck.core import ssrf
from quarterdeck.engine.outbound_http.types import RequestBlocked, Target, Unreachable

Resolve = Callable[[str, int, str], Awaitable[Sequence[str]]]
"""(host, port, requester) → all addresses of the host, best first."""
HostPort = tuple[str, int]
LookupResult = Sequence[str] | Exception
LOOKUPS_MAX = 32
SHARE_COUNT = 4
"""A single requester can use one lookup in this many at most."""
ADDRESSES_MAX = 4


def _allow_all(text: str) -> str | None:
    return None


def _malformed_host(host: str) -> str | None:
    reason = ssrf.blocked_host_reason(host)
    return reason if reason == ssrf.MALFORMED_HOST else None


@dataclass(frozen=True, slots=True)
class SsrfGuard:
    """Each check returns why a call is blocked, or None."""

    check_host: Callable[[str], str | None]
    """For the host as written in the URL."""
    check_address: Callable[[str], str | None]
    """For an address that the host resolved to."""


PUBLIC_ONLY = SsrfGuard(ssrf.blocked_host_reason, ssrf.blocked_address_reason)
"""For URLs from clients."""
ALLOW_PRIVATE = SsrfGuard(_malformed_host, _allow_all)
"""For URLs from clients where private networks are allowed: in tests, and on private installations."""
ALLOW_ALL = SsrfGuard(_allow_all, _allow_all)
"""For URLs from the operator of this server, which may be in a private network."""


class Resolver:
    """Resolves names with the system's resolver, in its own threads.

    A name whose DNS servers do not respond keeps its thread for 30 seconds after all callers have given up. So the
    number of threads is limited, and they are separate from all others, especially those in which the database commits.
    Each requester has a share: if it uses names that do not resolve, it delays only its own calls. Concurrent lookups
    of a name are merged. The threads do not keep the process from exiting.
    """

    def __init__(self, lookups_max: int = LOOKUPS_MAX) -> None:
        self._slots = asyncio.Semaphore(lookups_max)
        self._share_size = max(1, lookups_max // SHARE_COUNT)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Shares in use, by requester. The references are weak, so an unused share is deleted."""
        self._lookups: dict[HostPort, asyncio.Future[LookupResult]] = {}

    async def __call__(self, host: str, port: int, requester: str) -> Sequence[str]:
        if _is_address(host):
            return [host]
        host_port = host, port
        if host_port not in self._lookups:
            share = self._shares.setdefault(requester, asyncio.Semaphore(self._share_size))
            await share.acquire()
            try:
                await self._slots.acquire()
            except BaseException:  # usually a cancellation: the caller must not keep its share
                share.release()
                raise
            if host_port in self._lookups:  # another caller has started the same lookup in the meantime
                self._release(share)
            else:
                self._start_lookup(host_port, share)
        # Shielded, so that a canceled caller does not cancel the lookup for the others.
        result = await asyncio.shield(self._lookups[host_port])
        if isinstance(result, Exception):
            raise result
        return result

    def _start_lookup(self, host_port: HostPort, share: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()

        def on_result(result: LookupResult) -> None:
            # A closed loop has no waiting callers.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish_lookup, host_port, share, result)

        try:
            threading.Thread(target=_look_up, args=(*host_port, on_result), name="resolver", daemon=True).start()
        except RuntimeError:
            self._release(share)
            raise Unreachable("no thread is available to resolve its host name") from None
        self._lookups[host_port] = loop.create_future()

    def _finish_lookup(self, host_port: HostPort, share: asyncio.Semaphore, result: LookupResult) -> None:
        self._release(share)
        self._lookups.pop(host_port).set_result(result)

    def _release(self, share: asyncio.Semaphore) -> None:
        share.release()
        self._slots.release()


async def resolve_target(target: Target, guard: SsrfGuard, resolve: Resolve, requester: str) -> Sequence[str]:
    """The addresses to try, in order. All addresses of the name were checked, not only these."""
    if reason := guard.check_host(target.host):
        raise RequestBlocked(f"its host is {reason}")
    addresses = await resolve(target.host, target.port, requester)
    for address in addresses:
        if reason := guard.check_address(address):
            raise RequestBlocked(f"an address of its host is {reason}", address)
    if not addresses:
        raise Unreachable("its host name has no address")
    return addresses[:ADDRESSES_MAX]


def _look_up(host: str, port: int, on_result: Callable[[LookupResult], None]) -> None:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        on_result(Unreachable("its host name cannot be resolved"))
    except Exception as error:  # broad, because a caller is waiting for the result, whatever it is
        on_result(error)
    else:
        on_result([*dict.fromkeys(str(row[4][0]) for row in rows)])


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
