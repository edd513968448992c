"""The issuers that this server trusts, and their keys.

An issuer is a name and its own keys. `issuer_of` selects the issuer that the token names. The token is then checked
with the keys of that issuer only.
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote, urlsplit

from quarterdeck.engine.outbound_http.types import DEFAULT_PORTS
from quarterdeck.http.auth.jwk import VerifyingKey
from quarterdeck.http.auth.jwks_cache import JwksCache
from quarterdeck.http.auth.jwt_claims import UnverifiedToken, raise_invalid_token
from quarterdeck.http.auth.local_issuer import LocalIssuer
from quarterdeck.http.auth.model import AuthSettings


class Issuer(Protocol):
    """What the `Authenticator` needs from an issuer."""

    @property
    def may_grant_admin(self) -> bool: ...
    @property
    def is_local(self) -> bool: ...

    async def find_key(self, token: UnverifiedToken) -> VerifyingKey | None:
        """The key that the token names, or None if the issuer has no such key."""

    def on_token_verified(self, token: UnverifiedToken) -> None:
        """Called after the token's signature has been verified."""


class TrustedIssuers:
    """The trusted issuers. Raises ValueError, with a message for the operator, if a configured URL is invalid."""

    def __init__(self, settings: AuthSettings, local: LocalIssuer | None, jwks_cache: JwksCache) -> None:
        self._local = _TrustedLocalIssuer(local) if local is not None else None
        self._external: dict[str, _ExternalIssuer] = {}
        admin = settings.admin_issuer
        if settings.issuer_url:
            keys_base_url = settings.sts_url or settings.issuer_url
            _check_url("STS_URL" if settings.sts_url else "ISSUER_URL", keys_base_url)
            self._external[settings.issuer_url] = _ExternalIssuer(
                keys_base_url, jwks_cache, settings.issuer_url == admin
            )
        if admin and admin not in self._external and (local is None or admin != local.issuer):
            _check_url("QD_ADMIN_ISSUER", admin)
            self._external[admin] = _ExternalIssuer(admin, jwks_cache, may_grant_admin=True)

    def issuer_of(self, token: UnverifiedToken) -> Issuer:
        """The issuer that the token names. Refuses tokens from untrusted issuers."""
        if self._local is not None and self._local.matches(token):
            return self._local
        external = self._external.get(token.claims.iss)
        if external is None:
            raise_invalid_token("This server does not trust the token's issuer, or the key it is signed with.")
        return external


def _check_url(name: str, url: str) -> None:
    """Raise ValueError, at start-up, for a configured URL that can never be fetched."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{name} is not a URL.") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ValueError(f"{name} must be an http:// or https:// URL.")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{name} must not contain a user name, a query or a fragment.")
    if not url.isascii() or any(character <= " " or character in "\\\x7f" for character in url):
        raise ValueError(f"{name} must be ASCII without spaces.")


class _TrustedLocalIssuer:
    """The local issuer. Its tokens name its key by thumbprint, so `matches` works even if its name is ISSUER_URL."""

    may_grant_admin = True
    is_local = True

    def __init__(self, issuer: LocalIssuer) -> None:
        self._issuer = issuer

    def matches(self, token: UnverifiedToken) -> bool:
        return token.claims.iss == self._issuer.issuer and token.header.kid == self._issuer.kid

    async def find_key(self, token: UnverifiedToken) -> VerifyingKey:
        return self._issuer.verifying_key

    def on_token_verified(self, token: UnverifiedToken) -> None:
        """Nothing to record: the key is not in the JWKS cache."""


class _ExternalIssuer:
    """An issuer whose keys are fetched, one set per zone, so that the keys of a zone can sign for that zone only."""

    is_local = False

    def __init__(self, base_url: str, jwks_cache: JwksCache, may_grant_admin: bool) -> None:
        self.may_grant_admin = may_grant_admin
        self._jwks_url = base_url.rstrip("/") + "/.well-known/jwks.json"
        self._jwks_cache = jwks_cache

    async def find_key(self, token: UnverifiedToken) -> VerifyingKey | None:
        return await self._jwks_cache.find_key(self._url(token), token.header.kid)

    def on_token_verified(self, token: UnverifiedToken) -> None:
        self._jwks_cache.mark_verified(self._url(token))

    def _url(self, token: UnverifiedToken) -> str:
        # A forger can choose the zone, but `check_claims` has verified that it is a path id.
        return f"{self._jwks_url}?zone_id={quote(token.claims.zone_id, safe='')}"
