"""The addresses of a name, and which of them may be called."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address

from quarterdeck.core import addresses
from quarterdeck.engine.outward.model import Refused, Target, Unreachable

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Every address of a host, the best first."""
AT_ONCE = 32
TRIED_MAX = 4


def _nothing(named: str) -> str | None:
    return None


def _strange(host: str) -> str | None:
    why = addresses.refused(host)
    return why if why == addresses.STRANGE else None


@dataclass(frozen=True, slots=True)
class Guard:
    """Why something must not be called, if it must not."""

    host: Callable[[str], str | None]
    """A host, as it is spelt."""
    address: Callable[[str], str | None]
    """An address that it was resolved to."""


PUBLIC = Guard(addresses.refused, addresses.address_refused)
"""For URLs that callers have named."""
LAB = Guard(_strange, _nothing)
"""For the same where private networks are allowed: in tests, and where everybody is at home."""
OWN = Guard(_nothing, _nothing)
"""For URLs of whoever runs this server, who may well keep them in a private network."""


class Resolver:
    """Asks the system, in threads of its own. A name whose servers stay silent holds its thread for half a minute after
    everybody has given up waiting, so there are only so many at a time; and they are nobody else's, least of all those
    in which the database commits. They do not keep a process from ending."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._free = asyncio.Semaphore(at_once)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        if _is_address(host):
            return [host]
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[str]] = loop.create_future()
        thread = threading.Thread(
            target=_look_up, args=(host, port, partial(self._tell, loop, found)), name="resolver", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._free.release()
            raise Unreachable("no thread is left to look its name up") from None
        return await found

    def _tell(
        self,
        loop: asyncio.AbstractEventLoop,
        found: asyncio.Future[Sequence[str]],
        outcome: Sequence[str] | Exception,
    ) -> None:
        # A loop that is closed has nobody waiting.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._settle, found, outcome)

    def _settle(self, found: asyncio.Future[Sequence[str]], outcome: Sequence[str] | Exception) -> None:
        self._free.release()
        if found.done():
            return
        if isinstance(outcome, Exception):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)


async def places(target: Target, guard: Guard, resolve: Resolve) -> Sequence[str]:
    """The addresses to try, in this order. Every one that the name has was judged, these few included."""
    if why := guard.host(target.host):
        raise Refused(f"its host is {why}")
    found = await resolve(target.host, target.port)
    for address in found:
        if why := guard.address(address):
            raise Refused(f"an address of its host is {why}", address)
    if not found:
        raise Unreachable("its name has no address")
    return found[:TRIED_MAX]


def _look_up(host: str, port: int, tell: Callable[[Sequence[str] | Exception], None]) -> None:
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
