"""Public keys, each bound to one algorithm.

Keys that are too weak, not for signatures, or of an unknown type are skipped. They do not make the set invalid: issuers
also publish encryption keys and keys for newer algorithms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import Algorithm, ECAlgorithm, OKPAlgorithm, RSAAlgorithm

PublicKey = EllipticCurvePublicKey | Ed25519PublicKey | RSAPublicKey

MAX_KEYS = 100
_RSA_BITS = range(2048, 8192 + 1)


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key bound to its algorithm when it is loaded, so that a token cannot choose the algorithm."""

    kid: str | None
    alg: str
    public_key: PublicKey
    algorithm: Algorithm

    def verify(self, message: bytes, signature: bytes) -> bool:
        return self.algorithm.verify(message, self.public_key, signature)


def to_verifying_key(kid: str | None, public_key: object) -> VerifyingKey | None:
    """Bind a key to the algorithm for its type. None if the key is not accepted."""
    if isinstance(public_key, EllipticCurvePublicKey) and isinstance(public_key.curve, SECP256R1):
        return VerifyingKey(kid, "ES256", public_key, jwt.get_algorithm_by_name("ES256"))
    if isinstance(public_key, Ed25519PublicKey):
        return VerifyingKey(kid, "EdDSA", public_key, jwt.get_algorithm_by_name("EdDSA"))
    if isinstance(public_key, RSAPublicKey) and public_key.key_size in _RSA_BITS:
        return VerifyingKey(kid, "RS256", public_key, jwt.get_algorithm_by_name("RS256"))
    return None


class KeySet:
    """The usable keys in one JWKS document."""

    def __init__(self, keys: Iterable[VerifyingKey] = ()) -> None:
        self._keys = tuple(keys)

    def __iter__(self) -> Iterator[VerifyingKey]:
        return iter(self._keys)

    def find(self, kid: str | None) -> VerifyingKey | None:
        """The key that a token names. A token without `kid` is accepted only if the set has exactly one key."""
        if kid is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.kid == kid), None)


class _Jwk(msgspec.Struct, frozen=True):
    """The public members of a JWK. Private members that were published by mistake are ignored."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: list[str] | None = None
    crv: str = ""
    x: str = ""
    y: str = ""
    n: str = ""
    e: str = ""


class _Jwks(msgspec.Struct, frozen=True):
    keys: list[msgspec.Raw]


_jwks_decoder = msgspec.json.Decoder(_Jwks)
_jwk_decoder = msgspec.json.Decoder(_Jwk)


def parse_key_set(document: bytes) -> KeySet:
    """The usable keys in a JWKS document. Raises ValueError if it is not a JWKS document."""
    try:
        published_keys = _jwks_decoder.decode(document).keys
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("not a JWKS document") from None
    return KeySet(key for raw in published_keys[:MAX_KEYS] if (key := _parse_key(raw)) is not None)


def _parse_key(raw: msgspec.Raw) -> VerifyingKey | None:
    try:
        jwk = _jwk_decoder.decode(raw)
        public_key = _public_key(jwk)
    except (ValueError, RecursionError, jwt.InvalidKeyError, UnsupportedAlgorithm):
        return None
    key = to_verifying_key(jwk.kid, public_key)
    if key is None or jwk.alg not in (None, key.alg):
        return None
    is_signing_key = jwk.use in (None, "sig") and (jwk.key_ops is None or "verify" in jwk.key_ops)
    return key if is_signing_key else None


def _public_key(jwk: _Jwk) -> object:
    match jwk.kty:
        case "EC":
            return ECAlgorithm.from_jwk({"kty": "EC", "crv": jwk.crv, "x": jwk.x, "y": jwk.y})
        case "OKP":
            return OKPAlgorithm.from_jwk({"kty": "OKP", "crv": jwk.crv, "x": jwk.x})
        case "RSA":
            return RSAAlgorithm.from_jwk({"kty": "RSA", "n": jwk.n, "e": jwk.e})
    return None
