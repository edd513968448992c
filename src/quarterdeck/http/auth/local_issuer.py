"""The local issuer: one ES256 key, and tokens signed with it.

It lets `qd up` run without an external issuer. Its name is derived from its key (the RFC 7638 thumbprint), so two
servers with different keys are two issuers that do not trust each other. Replicas share one key file.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, FLEET_EXEC, LIFECYCLE
from quarterdeck.core.errors import Invalid, Unauthenticated
from quarterdeck.http.auth.jwk import VerifyingKey, to_verifying_key
from quarterdeck.http.auth.jwt_claims import check_claims, parse_token
from quarterdeck.http.auth.model import Grant
from quarterdeck.http.auth.secret_files import KeyFileError, create_secret, read_secret, replace_secret

ADMIN_TOKEN_TTL_SECONDS = 30 * 24 * 3600
"""The server writes a new admin token at every start and once a day."""


class LocalIssuer:
    """Signs tokens. `issuer` is their `iss` and their `aud`."""

    def __init__(
        self, key: EllipticCurvePrivateKey, issuer: str | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._jwk = public_jwk(key.public_key())
        self._clock = clock
        self.kid = thumbprint(self._jwk)
        self.issuer = issuer or f"urn:quarterdeck:{self.kid}"
        verifying_key = to_verifying_key(self.kid, key.public_key())
        if verifying_key is None:
            raise ValueError("The key of the local issuer must be a P-256 key.")
        self.verifying_key: VerifyingKey = verifying_key

    @classmethod
    def open(cls, key_file: Path, issuer: str | None = None, clock: Callable[[], float] = time.time) -> LocalIssuer:
        """Read the signing key. Creates it on the first start. Raises KeyFileError with a message for the operator."""
        pem = read_secret(key_file)
        if pem is None:
            create_secret(key_file, _new_pem())
            # Read the file back: if another process created it first, this process must use that key.
            pem = read_secret(key_file)
        if pem is None:
            raise KeyFileError(f"The key file {key_file} is a symbolic link to a file that does not exist.")
        return cls(_load_private_key(key_file, pem), issuer, clock)

    def mint(self, grant: Grant, ttl_seconds: int) -> str:
        """Sign a token that is valid for `ttl_seconds`. Raises Invalid if the server would not accept it."""
        if ttl_seconds < 1:
            raise Invalid("invalid_ttl", "`ttl` must be at least 1 second.", field="ttl")
        if any(not scope or " " in scope for scope in grant.scopes):
            raise Invalid("invalid_scope", "A scope must be one word without spaces.", field="scope")
        now = int(self._clock())
        claims = {
            "iss": self.issuer,
            "aud": self.issuer,
            "iat": now,
            "exp": now + ttl_seconds,
            "zone_id": grant.zone_id,
            "sub": grant.subject,
            "client_id": grant.client_id,
            "scope": " ".join(grant.scopes),
            "sid": grant.sid,
            "agent_session_id": grant.session_id,
            "agent_id": grant.agent_id,
            "delegation_edge_id": grant.delegation_edge_id,
            "role": grant.role,
            "attempt": grant.attempt,
            "agent_since": grant.agent_since,
        }
        payload = {name: value for name, value in claims.items() if value is not None}
        token = jwt.encode(payload, self._key, algorithm="ES256", headers={"kid": self.kid})
        try:
            # Checked like an incoming token, so that the server does not issue a token that it would refuse.
            check_claims(parse_token(token.encode()).claims, now, leeway_seconds=0)
        except Unauthenticated as error:
            raise Invalid("invalid_claims", error.detail) from None
        return token

    def sign(self, message: bytes) -> bytes:
        """Sign a seal of the event log. The message must never equal a token (`core.audit_seal.signing_message`)."""
        return self.verifying_key.algorithm.sign(message, self._key)

    def derive_secret(self, purpose: str) -> bytes:
        """Derive 32 bytes from the private key, different for each purpose, instead of storing a secret.

        The bytes reveal neither the key nor the bytes for another purpose.
        """
        private_value = self._key.private_numbers().private_value.to_bytes(32, "big")
        return HKDF(SHA256(), length=32, salt=None, info=b"quarterdeck " + purpose.encode()).derive(private_value)

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """The public key that verifies our tokens: the body of /.well-known/jwks.json."""
        return {"keys": [{**self._jwk, "kid": self.kid, "use": "sig", "alg": "ES256"}]}

    def write_admin_token(
        self, path: Path, *, lifecycle_scope: str = LIFECYCLE, ttl_seconds: int = ADMIN_TOKEN_TTL_SECONDS
    ) -> None:
        """Write the local administrator's token to the file that the CLI reads."""
        replace_secret(path, self.mint_admin_token(lifecycle_scope, ttl_seconds).encode())

    def mint_admin_token(self, lifecycle_scope: str = LIFECYCLE, ttl_seconds: int = ADMIN_TOKEN_TTL_SECONDS) -> str:
        """Sign a token for the local administrator, who may do everything in every zone."""
        admin_grant = Grant(
            zone_id="default",
            client_id="local",
            subject="local",
            sid="local",
            scopes=(lifecycle_scope, COORDINATOR_ADMIN, ADMIN, FLEET_EXEC),
        )
        return self.mint(admin_grant, ttl_seconds)


def _new_pem() -> bytes:
    return generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _load_private_key(path: Path, pem: bytes) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        # TypeError means that the key has a passphrase. `from None`: the library's messages may quote the file.
        raise KeyFileError(f"The key file {path} contains no PEM private key, or one with a passphrase.") from None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise KeyFileError(f"The key in {path} is not an ES256 key. It must use the curve P-256.")
    return key


def public_jwk(key: EllipticCurvePublicKey) -> dict[str, str]:
    # An uncompressed point is 0x04, x, y. Each coordinate of P-256 has 32 bytes, including leading zeros.
    point = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return {"crv": "P-256", "kty": "EC", "x": _base64url(point[1:33]), "y": _base64url(point[33:65])}


def thumbprint(jwk: dict[str, str]) -> str:
    """RFC 7638: the SHA-256 of the required members, sorted by name, as JSON without spaces."""
    return _base64url(hashlib.sha256(msgspec.json.encode(dict(sorted(jwk.items())))).digest())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
