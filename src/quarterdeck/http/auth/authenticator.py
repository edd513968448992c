"""Turns the credentials of a request into a `Caller`, and checks a caller's scope and zone."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Protocol

from quarterdeck.core import api_key
from quarterdeck.core.api_key import ParsedApiKey
from quarterdeck.core.caller import LIFECYCLE, METRICS, Caller
from quarterdeck.core.errors import Forbidden
from quarterdeck.http.auth import jwt_claims
from quarterdeck.http.auth.issuers import TrustedIssuers
from quarterdeck.http.auth.jwks_cache import JwksCache, JwksFetcher
from quarterdeck.http.auth.local_issuer import LocalIssuer
from quarterdeck.http.auth.model import AuthSettings

_BEARER_PREFIX = b"Bearer "
_MAX_HEADER_BYTES = len(_BEARER_PREFIX) + jwt_claims.MAX_TOKEN_BYTES
ApiKeyLookup = Callable[[ParsedApiKey], Awaitable[Caller]]
"""Looks up an API key in the database, for every request. Raises a problem if the key is refused."""


class Credentials(Protocol):
    """The two headers that can carry a credential, as they were sent."""

    authorization: bytes | None
    api_key: bytes | None


class Authenticator:
    """Authenticates requests. Caches verified tokens and the keys of issuers.

    `clock` returns the wall-clock time, `monotonic` a time that never goes backwards.
    """

    def __init__(
        self,
        settings: AuthSettings,
        local: LocalIssuer | None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._leeway_seconds = settings.leeway_seconds
        self._lifecycle_scope = settings.lifecycle_scope
        self._token_cache_max = settings.token_cache_max
        self._jwks_cache = JwksCache(settings, JwksFetcher(settings.jwks_timeout_seconds), monotonic)
        self._issuers = TrustedIssuers(settings, local, self._jwks_cache)
        self._token_cache: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._lookup_api_key: ApiKeyLookup | None = None

    def set_api_key_lookup(self, lookup: ApiKeyLookup) -> None:
        """Set the lookup, which is built after this object. Until then every API key is refused."""
        self._lookup_api_key = lookup

    async def authenticate(self, credentials: Credentials) -> Caller:
        """The caller that these credentials identify.

        A stream calls this again with the same headers: a token that has since expired is refused, and so is a
        revoked API key, because keys are looked up each time.
        """
        if credentials.api_key:
            if credentials.authorization:
                jwt_claims.raise_invalid_token("The request has both a bearer token and an API key. Send one of them.")
            return await self._authenticate_api_key(credentials.api_key)
        cached = self.cached_caller(credentials.authorization) if credentials.authorization else None
        return cached or await self.verify_token(credentials.authorization)

    def cached_caller(self, authorization: bytes) -> Caller | None:
        """The cached caller for an Authorization header, unless its token has expired. Runs for every request."""
        if len(authorization) > _MAX_HEADER_BYTES:
            return None
        digest = sha256(authorization).digest()
        entry = self._token_cache.get(digest)
        if entry is None:
            return None
        if self._clock() < entry[0]:
            return entry[1]
        del self._token_cache[digest]
        return None

    async def verify_token(self, authorization: bytes | None) -> Caller:
        """Check a bearer token completely. Raises Unauthenticated, or Unavailable if its key cannot be fetched."""
        token = jwt_claims.parse_token(jwt_claims.extract_bearer_token(authorization))
        issuer = self._issuers.issuer_of(token)
        jwt_claims.check_claims(token.claims, self._clock(), self._leeway_seconds)
        key = await issuer.find_key(token)
        if key is None:
            jwt_claims.raise_invalid_token("The token names a key that its issuer does not publish.")
        # The key determines the algorithm, and the token's `alg` must match it.
        if token.header.alg != key.alg or not key.verify(token.signing_input, token.signature):
            jwt_claims.raise_invalid_token("The token's signature is not valid.")
        issuer.on_token_verified(token)
        caller = jwt_claims.to_caller(
            token.claims,
            may_grant_admin=issuer.may_grant_admin,
            is_local=issuer.is_local,
            leeway_seconds=self._leeway_seconds,
        )
        self._cache_token(authorization or b"", token.claims.exp, caller)
        return caller

    def check_access(self, caller: Caller, scope: str, zone_id: str | None) -> None:
        """Check the scope, then the zone. Raises Forbidden."""
        required_scope = self._lifecycle_scope if scope == LIFECYCLE else scope
        # Administrators may read metrics too. The metrics scope is for callers that may do nothing else.
        if required_scope not in caller.scopes and not (scope == METRICS and caller.is_admin):
            raise Forbidden(
                "missing_scope", f"This route needs a token with the scope {required_scope}.", scope=required_scope
            )
        if zone_id is not None and zone_id != caller.zone_id and not caller.is_admin:
            raise Forbidden("zone_mismatch", "The token is for another zone.")

    async def close(self) -> None:
        """Cancel running fetches and clear the caches."""
        await self._jwks_cache.close()
        self._token_cache.clear()

    async def _authenticate_api_key(self, text: bytes) -> Caller:
        parsed_key = api_key.parse(text)
        if parsed_key is None or self._lookup_api_key is None:
            raise api_key.invalid_key_error()
        return await self._lookup_api_key(parsed_key)

    def _cache_token(self, authorization: bytes, expires_at: float, caller: Caller) -> None:
        # Other spellings of the prefix "Bearer " are not cached: one token with many of them could fill the cache.
        if not authorization.startswith(_BEARER_PREFIX) or authorization.startswith(b" ", len(_BEARER_PREFIX)):
            return
        self._token_cache[sha256(authorization).digest()] = (expires_at, caller)
        if len(self._token_cache) > self._token_cache_max:
            self._token_cache.popitem(last=False)
