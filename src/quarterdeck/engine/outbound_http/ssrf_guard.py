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
from quarterdeck.engine.outbound_http.types import Refused, Target, Unreachable

Resolve = Callable[[str, int, str], Awaitable[Sequence[str]]]
"""Every address of a host, the best first: by the host, the port, and whoever asks."""
Name = tuple[str, int]
Found = Sequence[str] | Exception
AT_ONCE = 32
SHARES = 4
"""So many askers together may use all of them; one alone a part."""
TRIED_MAX = 4


def _nothing(named: str) -> str | None:
    return None


def _strange(host: str) -> str | None:
    why = ssrf.refused(host)
    return why if why == ssrf.STRANGE else None


@dataclass(frozen=True, slots=True)
class Guard:
    """Why something must not be called, if it must not."""

    host: Callable[[str], str | None]
    """A host, as it is spelt."""
    address: Callable[[str], str | None]
    """An address that it was resolved to."""


PUBLIC = Guard(ssrf.refused, ssrf.address_refused)
"""For URLs that callers have named."""
LAB = Guard(_strange, _nothing)
"""For the same where private networks are allowed: in tests, and where everybody is at home."""
OWN = Guard(_nothing, _nothing)
"""For URLs of whoever runs this server, who may well keep them in a private network."""


class Resolver:
    """Asks the system, in threads of its own. A name whose servers stay silent holds its thread for half a minute after
    everybody has given up waiting, so there are only so many at a time; and they are nobody else's, least of all those
    in which the database commits. Of these few an asker has a share: whoever names hosts that nobody answers for keeps
    its own calls waiting, and not the others'. A name that is being looked up is not looked up beside it. The threads
    do not keep a process from ending."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._share = max(1, at_once // SHARES)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Of those who ask at present: whoever waits for a share or uses it keeps it here."""
        self._under_way: dict[Name, asyncio.Future[Found]] = {}

    async def __call__(self, host: str, port: int, asker: str) -> Sequence[str]:
        if _is_address(host):
            return [host]
        name = host, port
        if name not in self._under_way:
            share = self._shares.setdefault(asker, asyncio.Semaphore(self._share))
            await share.acquire()
            try:
                await self._free.acquire()
            except BaseException:  # a cancellation, mostly: whoever gives up waiting keeps nothing
                share.release()
                raise
            if name in self._under_way:  # somebody else's turn came first
                self._give_back(share)
            else:
                self._begin(name, share)
        # Shielded: whoever gives up waiting gives up for itself.
        found = await asyncio.shield(self._under_way[name])
        if isinstance(found, Exception):
            raise found
        return found

    def _begin(self, name: Name, share: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()

        def tell(found: Found) -> None:
            # A loop that is closed has nobody waiting.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, name, share, found)

        try:
            threading.Thread(target=_look_up, args=(*name, tell), name="resolver", daemon=True).start()
        except RuntimeError:
            self._give_back(share)
            raise Unreachable("no thread is left to look its name up") from None
        self._under_way[name] = loop.create_future()

    def _settle(self, name: Name, share: asyncio.Semaphore, found: Found) -> None:
        self._give_back(share)
        self._under_way.pop(name).set_result(found)

    def _give_back(self, share: asyncio.Semaphore) -> None:
        share.release()
        self._free.release()


async def places(target: Target, guard: Guard, resolve: Resolve, asker: str) -> Sequence[str]:
    """The addresses to try, in this order. Every one that the name has was judged, these few included."""
    if why := guard.host(target.host):
        raise Refused(f"its host is {why}")
    found = await resolve(target.host, target.port, asker)
    for address in found:
        if why := guard.address(address):
            raise Refused(f"an address of its host is {why}", address)
    if not found:
        raise Unreachable("its name has no address")
    return found[:TRIED_MAX]


def _look_up(host: str, port: int, tell: Callable[[Found], None]) -> None:
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        tell(Unreachable("its name cannot be resolved"))
    except Exception as error:  # whatever it is, somebody waits for it, and it is theirs
        tell(error)
    else:
        tell([*dict.fromkeys(str(row[4][0]) for row in rows)])


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
