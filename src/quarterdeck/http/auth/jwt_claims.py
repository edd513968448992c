"""Parses bearer tokens and checks everything that needs no key. Pure: no keys, no clock, no I/O.

    extract_bearer_token → parse_token → check_claims (form, audience, time) → to_caller

The claims are decoded once, before the signature check, and the same value is used afterwards: two parsers that read
one token differently are a classic vulnerability.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import ADMIN, Caller, Role
from quarterdeck.core.errors import Unauthenticated
from quarterdeck.core.ids import NAME_MAX, is_name, is_path_id

T = TypeVar("T")

MAX_TOKEN_BYTES = 8 * 1024
_BEARER_SCHEME = re.compile(rb"bearer +", re.IGNORECASE)
_COMPACT_JWS = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f]")

_YEAR_9999 = 253_402_300_799
NumericDate = Annotated[float, Meta(ge=0, le=_YEAR_9999)]
"""RFC 7519's NumericDate: seconds, possibly with a fraction. Bounded, so that arithmetic cannot overflow."""
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
OptionalName = Annotated[str, Meta(max_length=NAME_MAX)] | None
_ROLES = {role.value: role for role in Role}


class TokenHeader(msgspec.Struct, frozen=True):
    """The header members that are read. Members that contain or point to keys are left out on purpose."""

    alg: str
    kid: str | None = None
    crit: object = msgspec.UNSET


class Claims(msgspec.Struct, frozen=True):
    """The claims that are read. All other claims are ignored."""

    iss: str
    aud: str | list[str]
    exp: NumericDate
    zone_id: Name
    sub: Name
    client_id: Name
    nbf: NumericDate | None = None
    iat: NumericDate | None = None
    scope: str | None = None
    sid: OptionalName = None
    agent_session_id: OptionalName = None
    agent_id: OptionalName = None
    delegation_edge_id: OptionalName = None
    role: object = None
    """Other issuers use this name differently, so an unknown role is ignored and the token is not refused."""
    attempt: object = None
    agent_since: object = None


class UnverifiedToken(msgspec.Struct, frozen=True):
    """A well-formed token whose signature has not been checked yet."""

    header: TokenHeader
    claims: Claims
    signing_input: bytes
    signature: bytes


_header_decoder = msgspec.json.Decoder(TokenHeader)
_claims_decoder = msgspec.json.Decoder(Claims)


def raise_invalid_token(detail: str) -> NoReturn:
    # `from None`: the text of a parser's error may quote the token.
    raise Unauthenticated("invalid_token", detail) from None


def extract_bearer_token(authorization: bytes | None) -> bytes:
    """The bearer token in an Authorization header. A header with a different scheme counts as missing."""
    scheme = _BEARER_SCHEME.match(authorization or b"")
    if authorization is None or scheme is None or scheme.end() == len(authorization):
        raise Unauthenticated(
            "missing_token", "Send a bearer token in the Authorization header, or an API key in X-API-Key."
        )
    return authorization[scheme.end() :]


def parse_token(text: bytes) -> UnverifiedToken:
    """Parse a compact JWS strictly."""
    if len(text) > MAX_TOKEN_BYTES:
        raise_invalid_token(f"The bearer token is longer than {MAX_TOKEN_BYTES} bytes.")
    compact = _COMPACT_JWS.fullmatch(text)
    if compact is None:
        raise_invalid_token("The bearer token is not a signed JWT of three segments.")
    header_segment, claims_segment, signature_segment = compact.groups()
    header = _decode_segment(_header_decoder, header_segment, "header")
    if header.crit is not msgspec.UNSET:
        raise_invalid_token("The token's header requires extensions (crit), which are not supported.")
    claims = _decode_segment(_claims_decoder, claims_segment, "claims")
    return UnverifiedToken(
        header, claims, signing_input=text[: compact.end(2)], signature=_decode_base64url(signature_segment)
    )


def check_claims(claims: Claims, now: float, leeway_seconds: float) -> None:
    """Check everything about the claims that needs no key."""
    if not is_path_id(claims.zone_id):
        raise_invalid_token("The claim zone_id must be 1 to 128 letters, digits and `_ . - :`.")
    optional_names = (claims.sid, claims.agent_session_id, claims.agent_id, claims.delegation_edge_id)
    if any(
        _CONTROL_CHARACTER.search(name) for name in (claims.sub, claims.client_id, *optional_names) if name is not None
    ):
        raise_invalid_token("A claim contains control characters.")
    if claims.iss not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud):
        raise_invalid_token("The token is for another audience: `aud` must name the issuer (`iss`).")
    if now >= claims.exp + leeway_seconds:
        raise_invalid_token("The token has expired.")
    if claims.nbf is not None and now + leeway_seconds < claims.nbf:
        raise_invalid_token("The token is not valid yet.")
    if claims.iat is not None and now + leeway_seconds < claims.iat:
        raise_invalid_token("The token was issued in the future (`iat`).")


def to_caller(claims: Claims, *, may_grant_admin: bool, is_local: bool, leeway_seconds: float) -> Caller:
    """Build the caller. Call this only after the signature has been verified."""
    scopes = frozenset((claims.scope or "").split(" ")) - {""}
    if not may_grant_admin:
        # Removed, because code that checks `scopes` without `is_admin` must not find it.
        scopes -= {ADMIN}
    return Caller(
        subject=claims.sub,
        client_id=claims.client_id,
        zone_id=claims.zone_id,
        scopes=scopes,
        sid=claims.sid or None,
        session_id=claims.agent_session_id or None,
        agent_id=claims.agent_id or None,
        delegation_edge_id=claims.delegation_edge_id or None,
        is_admin=ADMIN in scopes,
        role=_ROLES.get(claims.role) if isinstance(claims.role, str) else None,
        attempt=_attempt_claim(claims.attempt),
        is_local=is_local,
        agent_since=claims.agent_since if type(claims.agent_since) is int else None,
        issued_at=_issued_at(claims.iat, leeway_seconds),
    )


def _issued_at(iat: float | None, leeway_seconds: float) -> int:
    """The latest time, in milliseconds, at which the token could have been issued. 0 without `iat`."""
    # Most issuers round `iat` down to seconds, so a token with `iat` 7 may have been issued just before 8.
    return 0 if iat is None else round((iat + 1 + leeway_seconds) * 1000)


def _attempt_claim(claim: object) -> str | None:
    return claim if isinstance(claim, str) and is_name(claim) else None


def _decode_segment(decoder: msgspec.json.Decoder[T], segment: bytes, part: str) -> T:
    try:
        return decoder.decode(_decode_base64url(segment))
    except msgspec.ValidationError as error:
        # The error names the claim and the expected type, never the value.
        raise_invalid_token(f"The token's {part} is not valid: {error}.")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise_invalid_token(f"The token's {part} is not JSON.")


def _decode_base64url(segment: bytes) -> bytes:
    """Decode canonical base64url without padding. With other spellings, one token could have several digests."""
    try:
        data = base64.urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
    except binascii.Error:
        raise_invalid_token("The bearer token is not base64url.")
    if base64.urlsafe_b64encode(data).rstrip(b"=") != segment:
        raise_invalid_token("The bearer token is not canonical base64url.")
    return data
