"""A bearer token as text, and what can be said of it without a key. Pure: no keys, no clock, no I/O.

    credential → parse → judge (form, audience, time) → caller

The claims are decoded once, before the signature is checked, and the very same value is used after: two
parsers that read one token differently are a classic way in.
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
"""RFC 7519's NumericDate: seconds, possibly with a fraction. Bounded: arithmetic on it cannot overflow."""
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
OptionalName = Annotated[str, Meta(max_length=NAME_MAX)] | None
_ROLES = {role.value: role for role in Role}


class TokenHeader(msgspec.Struct, frozen=True):
    """What is read of a token's header. Members that carry or point to keys are left out on purpose."""

    alg: str
    kid: str | None = None
    crit: object = msgspec.UNSET


class Claims(msgspec.Struct, frozen=True):
    """The contract's claims; others are ignored."""

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
    """Other issuers mean other things by this word: what is none of our roles is no role, and no reason to refuse."""
    attempt: object = None
    agent_since: object = None


class UnverifiedToken(msgspec.Struct, frozen=True):
    """A well-formed token of which nothing is believed yet."""

    header: TokenHeader
    claims: Claims
    signing_input: bytes
    signature: bytes


_header_decoder = msgspec.json.Decoder(TokenHeader)
_claims_decoder = msgspec.json.Decoder(Claims)


def raise_invalid_token(detail: str) -> NoReturn:
    # No chain: what a parser says of its input may quote the input.
    raise Unauthenticated("invalid_token", detail) from None


def extract_bearer_token(authorization: bytes | None) -> bytes:
    """The bearer credential of an Authorization header. Another scheme is no bearer token at all."""
    scheme = _BEARER_SCHEME.match(authorization or b"")
    if authorization is None or scheme is None or scheme.end() == len(authorization):
        raise Unauthenticated(
            "missing_token", "This needs a bearer token in the Authorization header, or an API key in X-API-Key."
        )
    return authorization[scheme.end() :]


def parse_token(text: bytes) -> UnverifiedToken:
    """Take a compact JWS apart, strictly."""
    if len(text) > MAX_TOKEN_BYTES:
        raise_invalid_token(f"The bearer token is longer than {MAX_TOKEN_BYTES} bytes.")
    compact = _COMPACT_JWS.fullmatch(text)
    if compact is None:
        raise_invalid_token("The bearer token is not a signed JWT of three segments.")
    header_segment, claims_segment, signature_segment = compact.groups()
    header = _decode_segment(_header_decoder, header_segment, "header")
    if header.crit is not msgspec.UNSET:
        raise_invalid_token("The token's header demands extensions (crit), and none are supported.")
    claims = _decode_segment(_claims_decoder, claims_segment, "claims")
    return UnverifiedToken(
        header, claims, signing_input=text[: compact.end(2)], signature=_decode_base64url(signature_segment)
    )


def check_claims(claims: Claims, now: float, leeway: float) -> None:
    """Everything about the claims that needs no key."""
    if not is_path_id(claims.zone_id):
        raise_invalid_token("The claim zone_id is not of the form of an id.")
    optional = (claims.sid, claims.agent_session_id, claims.agent_id, claims.delegation_edge_id)
    if any(_CONTROL_CHARACTER.search(name) for name in (claims.sub, claims.client_id, *optional) if name is not None):
        raise_invalid_token("A claim holds control characters.")
    if claims.iss not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud):
        raise_invalid_token("The token is meant for another audience.")
    if now >= claims.exp + leeway:
        raise_invalid_token("The token has expired.")
    if claims.nbf is not None and now + leeway < claims.nbf:
        raise_invalid_token("The token is not valid yet.")
    if claims.iat is not None and now + leeway < claims.iat:
        raise_invalid_token("The token says that it was issued in the future.")


def to_caller(claims: Claims, *, may_grant_admin: bool, is_local: bool, leeway: float) -> Caller:
    """Who that is. Only for claims whose signature holds."""
    scopes = frozenset((claims.scope or "").split(" ")) - {""}
    if not may_grant_admin:
        # Struck out rather than flagged: whoever asks later for the scope alone must not find it.
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
        issued_at=_issued_at(claims.iat, leeway),
    )


def _issued_at(iat: float | None, leeway: float) -> int:
    # Most count in whole seconds: one that says 7 was made before 8.
    return 0 if iat is None else round((iat + 1 + leeway) * 1000)


def _attempt_claim(claim: object) -> str | None:
    return claim if isinstance(claim, str) and is_name(claim) else None


def _decode_segment(decoder: msgspec.json.Decoder[T], segment: bytes, part: str) -> T:
    try:
        return decoder.decode(_decode_base64url(segment))
    except msgspec.ValidationError as error:
        # Names the claim and the type that was wanted, never the value that was found.
        raise_invalid_token(f"The token is refused for its {part}: {error}.")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise_invalid_token(f"The token's {part} cannot be read as JSON.")


def _decode_base64url(segment: bytes) -> bytes:
    """base64url without padding, in its one canonical spelling: one token must not have sixteen digests."""
    try:
        data = base64.urlsafe_b64decode(segment + b"=" * (-len(segment) % 4))
    except binascii.Error:
        raise_invalid_token("The bearer token is not base64url.")
    if base64.urlsafe_b64encode(data).rstrip(b"=") != segment:
        raise_invalid_token("The bearer token is not base64url in its canonical spelling.")
    return data
