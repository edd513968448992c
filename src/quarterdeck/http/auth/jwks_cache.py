"""Key sets of external issuers: fetched when needed, kept within bounds, asked for no more often than decent.

One rule serves every reason to ask (a set not met before, one grown old, a `kid` not in it, an issuer that
was away): **one URL is asked at most once in `jwks_refetch_seconds`, and by one request at a time.**
Between two questions the last outcome stands, be it a set, the statement that there is none, or a failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus

from quarterdeck.core.errors import Unavailable
from quarterdeck.http.auth.jwk import KeySet, VerifyingKey, read_key_set
from quarterdeck.http.auth.jwks_fetch import Answer, FetchFailed
from quarterdeck.http.auth.model import AuthSettings

Fetch = Callable[[str], Awaitable[Answer]]
Ticks = Callable[[], float]

_log = logging.getLogger(__name__)
_NEW_PER_SECOND = 10


@dataclass(slots=True)
class _Entry:
    """What is known of one URL."""

    keys: KeySet | None = None
    fetched_at: float = -math.inf
    asked_at: float = -math.inf
    proven: bool = False
    """A key of this set has verified a token, so the zone is real and not some forger's invention."""


class KeySets:
    """A bounded cache over `fetch`. `ticks` is a monotonic clock in seconds."""

    def __init__(self, settings: AuthSettings, fetch: Fetch, ticks: Ticks) -> None:
        self._max = max(1, settings.jwks_cache_max)
        self._fresh = settings.jwks_fresh_seconds
        self._stale = settings.jwks_stale_seconds
        self._gap = settings.jwks_refetch_seconds
        self._fetch = fetch
        self._ticks = ticks
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._asking: dict[str, asyncio.Task[_Entry]] = {}
        self._allowance = _Allowance(burst=self._max, per_second=_NEW_PER_SECOND, ticks=ticks)

    async def find(self, url: str, kid: str | None) -> VerifyingKey | None:
        """The key of that name, or None if the issuer has none. Raises Unavailable if nobody can say."""
        entry = self._entries.get(url)
        if entry is None or self._ticks() - entry.fetched_at >= self._fresh:
            entry = await self._asked(url)
        key = self._usable(entry).find(kid)
        if key is None:
            entry = await self._asked(url)
            key = self._usable(entry).find(kid)
        return key

    def proved(self, url: str) -> None:
        """A token was verified by a key of that set: keep it longer than those that never did any good."""
        if (entry := self._entries.get(url)) is not None:
            entry.proven = True
            self._entries.move_to_end(url)

    async def close(self) -> None:
        """Give up what is being asked."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _usable(self, entry: _Entry) -> KeySet:
        now = self._ticks()
        if entry.keys is None or now - entry.fetched_at >= self._stale:
            wait = max(1, math.ceil(entry.asked_at + self._gap - now))
            raise Unavailable(
                "issuer_unavailable",
                "The token cannot be checked, because its issuer's keys cannot be had right now.",
                retry_after=wait,
            )
        return entry.keys

    async def _asked(self, url: str) -> _Entry:
        """Ask the issuer, or join who is asking, or let the last outcome stand if it is too young."""
        task = self._asking.get(url)
        if task is None:
            entry = self._entries.get(url)
            if entry is not None and self._ticks() - entry.asked_at < self._gap:
                return entry
            if entry is None and not self._allowance.take():
                raise Unavailable(
                    "issuer_unavailable",
                    "The token cannot be checked: too many zones are asking for their issuer's keys at once.",
                    retry_after=1,
                )
            task = asyncio.create_task(self._ask(url), name="jwks")
            self._asking[url] = task
            task.add_done_callback(lambda _: self._asking.pop(url, None))
        # Waited for beside the task, not on it: whoever hangs up must not take the answer from the others.
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("issuer_unavailable", "The server is closing.", retry_after=1)
        return task.result()

    async def _ask(self, url: str) -> _Entry:
        entry = self._entries.get(url) or _Entry()
        try:
            entry.keys = _keys_of(await self._fetch(url))
            entry.fetched_at = self._ticks()
        except FetchFailed as failure:
            _log.warning("keys of an issuer could not be fetched: %s: %s", url, failure)
        entry.asked_at = self._ticks()
        self._keep(url, entry)
        return entry

    def _keep(self, url: str, entry: _Entry) -> None:
        self._entries[url] = entry
        self._entries.move_to_end(url)
        if len(self._entries) > self._max:
            # The oldest that proved nothing goes first: made-up zones must not wash out the real ones.
            others = (known for known, kept in self._entries.items() if known != url and not kept.proven)
            del self._entries[next(others, next(iter(self._entries)))]


def _keys_of(answer: Answer) -> KeySet:
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return KeySet()
    if answer.status != HTTPStatus.OK:
        raise FetchFailed(f"status {answer.status}")
    try:
        return read_key_set(answer.body)
    except ValueError as flaw:
        raise FetchFailed(str(flaw)) from None


class _Allowance:
    """A bucket of questions about URLs not met before: a burst, then so many a second."""

    def __init__(self, burst: int, per_second: float, ticks: Ticks) -> None:
        self._burst = burst
        self._per_second = per_second
        self._ticks = ticks
        self._left = float(burst)
        self._at = ticks()

    def take(self) -> bool:
        now = self._ticks()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
