"""The addresses of a name, and which of them may be called."""

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
"""Every address of a host, the best first: by the host, the port, and whoever asks."""
HostPort = tuple[str, int]
LookupResult = Sequence[str] | Exception
LOOKUPS_MAX = 32
FULL_SHARES = 4
"""So many askers together may use all of them; one alone a part."""
ADDRESSES_MAX = 4


def _allow_all(text: str) -> str | None:
    return None


def _malformed_host(host: str) -> str | None:
    reason = ssrf.blocked_host_reason(host)
    return reason if reason == ssrf.MALFORMED_HOST else None


@dataclass(frozen=True, slots=True)
class SsrfGuard:
    """Why something must not be called, if it must not."""

    check_host: Callable[[str], str | None]
    """A host, as it is spelt."""
    check_address: Callable[[str], str | None]
    """An address that it was resolved to."""


PUBLIC_ONLY = SsrfGuard(ssrf.blocked_host_reason, ssrf.blocked_address_reason)
"""For URLs that callers have named."""
ALLOW_PRIVATE = SsrfGuard(_malformed_host, _allow_all)
"""For the same where private networks are allowed: in tests, and where everybody is at home."""
ALLOW_ALL = SsrfGuard(_allow_all, _allow_all)
"""For URLs of whoever runs this server, who may well keep them in a private network."""


class Resolver:
    """Asks the system, in threads of its own. A name whose servers stay silent holds its thread for half a minute after
    everybody has given up waiting, so there are only so many at a time; and they are nobody else's, least of all those
    in which the database commits. Of these few an asker has a share: whoever names hosts that nobody answers for keeps
    its own calls waiting, and not the others'. A name that is being looked up is not looked up beside it. The threads
    do not keep a process from ending."""

    def __init__(self, lookups_max: int = LOOKUPS_MAX) -> None:
        self._slots = asyncio.Semaphore(lookups_max)
        self._share_size = max(1, lookups_max // FULL_SHARES)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Of those who ask at present: whoever waits for a share or uses it keeps it here."""
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
            except BaseException:  # a cancellation, mostly: whoever gives up waiting keeps nothing
                share.release()
                raise
            if host_port in self._lookups:  # somebody else's turn came first
                self._release(share)
            else:
                self._start_lookup(host_port, share)
        # Shielded: whoever gives up waiting gives up for itself.
        result = await asyncio.shield(self._lookups[host_port])
        if isinstance(result, Exception):
            raise result
        return result

    def _start_lookup(self, host_port: HostPort, share: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()

        def on_result(result: LookupResult) -> None:
            # A loop that is closed has nobody waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._finish_lookup, host_port, share, result)

        try:
            threading.Thread(target=_look_up, args=(*host_port, on_result), name="resolver", daemon=True).start()
        except RuntimeError:
            self._release(share)
            raise Unreachable("no thread is left to look its name up") from None
        self._lookups[host_port] = loop.create_future()

    def _finish_lookup(self, host_port: HostPort, share: asyncio.Semaphore, result: LookupResult) -> None:
        self._release(share)
        self._lookups.pop(host_port).set_result(result)

    def _release(self, share: asyncio.Semaphore) -> None:
        share.release()
        self._slots.release()


async def resolve_target(target: Target, guard: SsrfGuard, resolve: Resolve, requester: str) -> Sequence[str]:
    """The addresses to try, in this order. Every one that the name has was judged, these few included."""
    if reason := guard.check_host(target.host):
        raise RequestBlocked(f"its host is {reason}")
    addresses = await resolve(target.host, target.port, requester)
    for address in addresses:
        if reason := guard.check_address(address):
            raise RequestBlocked(f"an address of its host is {reason}", address)
    if not addresses:
        raise Unreachable("its name has no address")
    return addresses[:ADDRESSES_MAX]


def _look_up(host: str, port: int, on_result: Callable[[LookupResult], None]) -> None:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        on_result(Unreachable("its name cannot be resolved"))
    except Exception as error:  # whatever it is, somebody waits for it, and it is theirs
        on_result(error)
    else:
        on_result([*dict.fromkeys(str(row[4][0]) for row in rows)])


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
