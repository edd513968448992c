"""The built-in issuer: one ES256 key, and tokens signed with it.

It is what makes `qd up` work alone. Its name follows from its key (the RFC 7638 thumbprint), so two servers
with keys of their own are two issuers and do not believe each other; replicas that shall, share one key
file.
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

ADMIN_TOKEN_TTL = 30 * 24 * 3600
"""Seconds. The server writes a new one at every start; one that runs for longer must do so in between."""


class LocalIssuer:
    """Signs and names tokens. `issuer` is both their iss and their aud."""

    def __init__(
        self, key: EllipticCurvePrivateKey, issuer: str | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._jwk = public_jwk(key.public_key())
        self._clock = clock
        self.kid = thumbprint(self._jwk)
        self.issuer = issuer or f"urn:quarterdeck:{self.kid}"
        verifying = to_verifying_key(self.kid, key.public_key())
        if verifying is None:
            raise ValueError("The local issuer signs with a P-256 key.")
        self.verifying_key: VerifyingKey = verifying

    @classmethod
    def open(cls, key_file: Path, issuer: str | None = None, clock: Callable[[], float] = time.time) -> LocalIssuer:
        """Read the signing key, making one on the first start. Raises KeyFileError with a sentence."""
        pem = read_secret(key_file)
        if pem is None:
            create_secret(key_file, _new_pem())
            # Read back even so: another process may have been first, and then its key is the one.
            pem = read_secret(key_file)
        if pem is None:
            raise KeyFileError(f"The key file {key_file} is a link to nothing.")
        return cls(_private_key(key_file, pem), issuer, clock)

    def mint(self, grant: Grant, ttl: int) -> str:
        """A signed token, good for `ttl` seconds. Raises Invalid for what the server would not believe."""
        if ttl < 1:
            raise Invalid("invalid_ttl", "A token must be good for at least one second.", field="ttl")
        if any(not scope or " " in scope for scope in grant.scopes):
            raise Invalid("invalid_scope", "A scope is one word without spaces.", field="scope")
        now = int(self._clock())
        claims = {
            "iss": self.issuer,
            "aud": self.issuer,
            "iat": now,
            "exp": now + ttl,
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
            # Read back by the very judge that will meet it: nothing is handed out that would be refused.
            check_claims(parse_token(token.encode()).claims, now, leeway=0)
        except Unauthenticated as error:
            raise Invalid("invalid_claims", error.detail) from None
        return token

    def sign(self, message: bytes) -> bytes:
        """For seals. What is signed here must not be of the form of a token (`core.seals.signed_text`)."""
        return self.verifying_key.algorithm.sign(message, self._key)

    def derive_secret(self, purpose: str) -> bytes:
        """32 bytes that follow from the private key, and others for each purpose: for secrets that are found again
        instead of stored. They tell nothing of the key, nor of each other."""
        private_value = self._key.private_numbers().private_value.to_bytes(32, "big")
        return HKDF(SHA256(), length=32, salt=None, info=b"quarterdeck " + purpose.encode()).derive(private_value)

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """What others need to check our tokens: the body of /.well-known/jwks.json."""
        return {"keys": [{**self._jwk, "kid": self.kid, "use": "sig", "alg": "ES256"}]}

    def write_admin_token(self, path: Path, *, lifecycle_scope: str = LIFECYCLE, ttl: int = ADMIN_TOKEN_TTL) -> None:
        """Leave the local administrator's token where the CLI finds it."""
        replace_secret(path, self.mint_admin(lifecycle_scope, ttl).encode())

    def mint_admin(self, lifecycle_scope: str = LIFECYCLE, ttl: int = ADMIN_TOKEN_TTL) -> str:
        """The local administrator's token, who may do everything in every zone."""
        admin_grant = Grant(
            zone_id="default",
            client_id="local",
            subject="local",
            sid="local",
            scopes=(lifecycle_scope, COORDINATOR_ADMIN, ADMIN, FLEET_EXEC),
        )
        return self.mint(admin_grant, ttl)


def _new_pem() -> bytes:
    return generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _private_key(path: Path, pem: bytes) -> EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        # TypeError is how the library says that the key wants a passphrase. Neither text may quote the file.
        raise KeyFileError(f"The key file {path} holds no PEM private key that can be read.") from None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise KeyFileError(f"The key in {path} is not an ES256 key: it must be on the curve P-256.")
    return key


def public_jwk(key: EllipticCurvePublicKey) -> dict[str, str]:
    # An uncompressed point is 0x04, x, y; each coordinate of P-256 is 32 bytes, leading zeros included.
    point = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return {"crv": "P-256", "kty": "EC", "x": _base64url(point[1:33]), "y": _base64url(point[33:65])}


def thumbprint(jwk: dict[str, str]) -> str:
    """RFC 7638: the required members in the order of their names, as JSON without spaces, hashed."""
    return _base64url(hashlib.sha256(msgspec.json.encode(dict(sorted(jwk.items())))).digest())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
