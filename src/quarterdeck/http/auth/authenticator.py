"""The judge: from what a request shows to a `Caller`, and from a `Caller` to yes or no."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Protocol

from quarterdeck.core import api_key as apikey
from quarterdeck.core.api_key import ShownKey
from quarterdeck.core.caller import LIFECYCLE, METRICS, Caller
from quarterdeck.core.errors import Forbidden
from quarterdeck.http.auth import jwt_claims
from quarterdeck.http.auth.issuers import Issuers
from quarterdeck.http.auth.jwks_cache import KeySets
from quarterdeck.http.auth.jwks_fetch import Fetcher
from quarterdeck.http.auth.local_issuer import LocalIssuer
from quarterdeck.http.auth.model import AuthSettings

_CANONICAL = b"Bearer "
_MAX_HEADER = len(_CANONICAL) + jwt_claims.MAX_CREDENTIAL
FindKey = Callable[[ShownKey], Awaitable[Caller]]
"""Asks the database whose key that is, each time. Raises what the caller is to be told."""


class Presented(Protocol):
    """The two headers by which a request says who it is, as they came."""

    authorization: bytes | None
    api_key: bytes | None


class Authenticator:
    """Holds a server's verified tokens and issuers' keys. `clock` is the wall's; `ticks` never goes back."""

    def __init__(
        self,
        settings: AuthSettings,
        local: LocalIssuer | None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._leeway = settings.leeway_seconds
        self._lifecycle_scope = settings.lifecycle_scope
        self._max_verified = settings.token_cache_max
        self._keysets = KeySets(settings, Fetcher(settings.jwks_timeout_seconds), ticks)
        self._issuers = Issuers(settings, local, self._keysets)
        self._verified: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._find_key: FindKey | None = None

    def believes_keys(self, find_key: FindKey) -> None:
        """Told afterwards, because whoever finds keys is built later. Until then every key is refused."""
        self._find_key = find_key

    async def identify(self, shown: Presented) -> Caller:
        """Who shows this, at this moment. What outlives a request asks again with the same headers: a token that has
        expired meanwhile is refused, and so is a key that was revoked, because a key is asked about every time."""
        if shown.api_key:
            if shown.authorization:
                jwt_claims.refuse("The request has both a bearer token and an API key; give one of them.")
            return await self._by_key(shown.api_key)
        known = self.known(shown.authorization) if shown.authorization else None
        return known or await self.verify(shown.authorization)

    def known(self, authorization: bytes) -> Caller | None:
        """Who sent this very header before, if it held then and has not expired. Every request pays this."""
        if len(authorization) > _MAX_HEADER:
            return None
        digest = sha256(authorization).digest()
        entry = self._verified.get(digest)
        if entry is None:
            return None
        if self._clock() < entry[0]:
            return entry[1]
        del self._verified[digest]
        return None

    async def verify(self, authorization: bytes | None) -> Caller:
        """Check a credential whole. Raises Unauthenticated, or Unavailable if no key for it can be had."""
        token = jwt_claims.parse(jwt_claims.credential(authorization))
        issuer = self._issuers.issuer_of(token)
        jwt_claims.judge(token.claims, self._clock(), self._leeway)
        key = await issuer.key(token)
        if key is None:
            jwt_claims.refuse("The token is signed with a key that its issuer does not have.")
        # The key says which algorithm it is for; the token may only agree.
        if token.header.alg != key.alg or not key.verifies(token.signed, token.signature):
            jwt_claims.refuse("The token's signature does not hold.")
        issuer.proved(token)
        caller = jwt_claims.caller(
            token.claims, may_grant_admin=issuer.may_grant_admin, is_local=issuer.is_local, leeway=self._leeway
        )
        self._remember(authorization or b"", token.claims.exp, caller)
        return caller

    def check(self, caller: Caller, scope: str, zone: str | None) -> None:
        """Whether a caller may: the scope first, then the zone. Raises Forbidden."""
        wanted = self._lifecycle_scope if scope == LIFECYCLE else scope
        # Whoever crosses zones may see the figures too; the scope of its own is for those who may see nothing else.
        if wanted not in caller.scopes and not (scope == METRICS and caller.is_admin):
            raise Forbidden("missing_scope", f"This needs a token with the scope {wanted}.", scope=wanted)
        if zone is not None and zone != caller.zone_id and not caller.is_admin:
            raise Forbidden("zone_mismatch", "The token is for another zone.")

    async def close(self) -> None:
        """Give up what is being fetched, and forget everybody."""
        await self._keysets.close()
        self._verified.clear()

    async def _by_key(self, text: bytes) -> Caller:
        shown = apikey.read(text)
        if shown is None or self._find_key is None:
            raise apikey.refusal()
        return await self._find_key(shown)

    def _remember(self, authorization: bytes, until: float, caller: Caller) -> None:
        # One spelling only: "bearer" in sixty-four cases before any number of spaces is still one token.
        if not authorization.startswith(_CANONICAL) or authorization.startswith(b" ", len(_CANONICAL)):
            return
        self._verified[sha256(authorization).digest()] = (until, caller)
        if len(self._verified) > self._max_verified:
            self._verified.popitem(last=False)
