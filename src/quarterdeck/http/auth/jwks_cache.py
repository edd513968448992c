"""Fetches the key sets of external issuers, and caches a bounded number of them.

One rule covers every reason to fetch (an unknown set, an old set, a `kid` that is not in it, an issuer that was
unreachable): **a URL is fetched at most once per `jwks_refetch_seconds`, by one request at a time.** Between two
fetches the last result is used, whether it is a set, an empty set, or a failure.

The operator configures the URLs, so they may point into a private network, unlike URLs that come from clients. All
other rules of `engine.outbound_http` apply.
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
from quarterdeck.engine.outbound_http import ALLOW_ALL, OutboundClient, OutboundError, Request, Response, ResponseLimits
from quarterdeck.http.auth.jwk import KeySet, VerifyingKey, parse_key_set
from quarterdeck.http.auth.model import AuthSettings

Fetch = Callable[[str], Awaitable[Response]]
MonotonicClock = Callable[[], float]

_log = logging.getLogger(__name__)
_NEW_URLS_PER_SECOND = 10
MAX_RESPONSE_BYTES = 256 * 1024


class FetchError(Exception):
    """The fetch failed. The message is for the log and contains nothing from the response."""


class JwksFetcher:
    """Sends one GET with a time-out and a size limit. Follows no redirects."""

    def __init__(self, timeout_seconds: float, max_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._timeout_seconds = timeout_seconds
        self._http_client = OutboundClient(ALLOW_ALL, ResponseLimits(body_bytes=max_bytes))

    async def __call__(self, url: str) -> Response:
        request = Request("GET", url, [("Accept", "application/json")])
        try:
            return await self._http_client.send(request, self._timeout_seconds)
        except OutboundError as error:
            raise FetchError(str(error)) from None


@dataclass(slots=True)
class _CacheEntry:
    """The last result for one URL."""

    keys: KeySet | None = None
    fetched_at: float = -math.inf
    attempted_at: float = -math.inf
    """When the last fetch ended, successful or not."""
    has_verified_token: bool = False
    """Whether a key in this set has verified a token. If so, the zone is real and not a forger's invention."""


class JwksCache:
    """A bounded cache for the results of `fetch`. `monotonic` returns seconds."""

    def __init__(self, settings: AuthSettings, fetch: Fetch, monotonic: MonotonicClock) -> None:
        self._max_entries = max(1, settings.jwks_cache_max)
        self._fresh_seconds = settings.jwks_fresh_seconds
        self._stale_seconds = settings.jwks_stale_seconds
        self._refetch_seconds = settings.jwks_refetch_seconds
        self._fetch = fetch
        self._monotonic = monotonic
        self._entries: OrderedDict[str, _CacheEntry] = OrderedDict()
        self._running_fetches: dict[str, asyncio.Task[_CacheEntry]] = {}
        self._new_url_limiter = _RateLimiter(
            burst=self._max_entries, per_second=_NEW_URLS_PER_SECOND, monotonic=monotonic
        )

    async def find_key(self, url: str, kid: str | None) -> VerifyingKey | None:
        """The key with this id, or None if the issuer has no such key.

        Raises Unavailable if the set cannot be fetched and no usable set is cached.
        """
        entry = self._entries.get(url)
        if entry is None or self._monotonic() - entry.fetched_at >= self._fresh_seconds:
            entry = await self._refresh(url)
        key = self._usable_keys(entry).find(kid)
        if key is None:
            entry = await self._refresh(url)
            key = self._usable_keys(entry).find(kid)
        return key

    def mark_verified(self, url: str) -> None:
        """Record that a key in this set has verified a token. Sets that have done so are evicted last."""
        if (entry := self._entries.get(url)) is not None:
            entry.has_verified_token = True
            self._entries.move_to_end(url)

    async def close(self) -> None:
        """Cancel the running fetches."""
        fetches = list(self._running_fetches.values())
        for task in fetches:
            task.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def _usable_keys(self, entry: _CacheEntry) -> KeySet:
        now = self._monotonic()
        if entry.keys is None or now - entry.fetched_at >= self._stale_seconds:
            retry_after = max(1, math.ceil(entry.attempted_at + self._refetch_seconds - now))
            raise Unavailable(
                "issuer_unavailable",
                "The token cannot be checked: the keys of its issuer cannot be fetched. Keep the token and try again.",
                retry_after=retry_after,
            )
        return entry.keys

    async def _refresh(self, url: str) -> _CacheEntry:
        """Fetch the set, wait for a fetch that is already running, or return the last result if it is recent."""
        task = self._running_fetches.get(url)
        if task is None:
            entry = self._entries.get(url)
            if entry is not None and self._monotonic() - entry.attempted_at < self._refetch_seconds:
                return entry
            if entry is None and not self._new_url_limiter.try_acquire():
                raise Unavailable(
                    "issuer_unavailable",
                    "The token cannot be checked: too many unknown zones need keys at once. Try again.",
                    retry_after=1,
                )
            task = asyncio.create_task(self._fetch_entry(url), name="jwks")
            self._running_fetches[url] = task
            task.add_done_callback(lambda _: self._running_fetches.pop(url, None))
        # `wait` instead of awaiting the task: a cancelled request must not cancel the fetch for the others.
        await asyncio.wait({task})
        if task.cancelled():
            raise Unavailable("issuer_unavailable", "The server is shutting down.", retry_after=1)
        return task.result()

    async def _fetch_entry(self, url: str) -> _CacheEntry:
        entry = self._entries.get(url) or _CacheEntry()
        try:
            entry.keys = _parse_response(await self._fetch(url))
            entry.fetched_at = self._monotonic()
        except FetchError as error:
            _log.warning("fetching the keys of an issuer failed: %s: %s", url, error)
        entry.attempted_at = self._monotonic()
        self._store_entry(url, entry)
        return entry

    def _store_entry(self, url: str, entry: _CacheEntry) -> None:
        self._entries[url] = entry
        self._entries.move_to_end(url)
        if len(self._entries) > self._max_entries:
            # Evict the oldest set that never verified a token: made-up zones must not evict real ones.
            evictable = (
                other_url
                for other_url, other_entry in self._entries.items()
                if other_url != url and not other_entry.has_verified_token
            )
            del self._entries[next(evictable, next(iter(self._entries)))]


def _parse_response(response: Response) -> KeySet:
    if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return KeySet()
    if response.status != HTTPStatus.OK:
        raise FetchError(f"status {response.status}")
    try:
        return parse_key_set(response.body)
    except ValueError as error:
        raise FetchError(str(error)) from None


class _RateLimiter:
    """A token bucket for fetches of unknown URLs."""

    def __init__(self, burst: int, per_second: float, monotonic: MonotonicClock) -> None:
        self._burst = burst
        self._per_second = per_second
        self._monotonic = monotonic
        self._available = float(burst)
        self._refilled_at = monotonic()

    def try_acquire(self) -> bool:
        now = self._monotonic()
        self._available = min(self._burst, self._available + (now - self._refilled_at) * self._per_second)
        self._refilled_at = now
        if self._available < 1:
            return False
        self._available -= 1
        return True
