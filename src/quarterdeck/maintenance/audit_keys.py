"""Loads the public keys that verify seals. A file contains a PEM key, public or private, or a JWKS document.

A key is identified by its thumbprint, which is computed from the key itself. Key ids in the file are ignored.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from quarterdeck.http.auth.jwk import VerifyingKey, parse_key_set, to_verifying_key
from quarterdeck.http.auth.local_issuer import public_jwk, thumbprint
from quarterdeck.http.auth.secret_files import KeyFileError

_FILE_MAX_BYTES = 256 * 1024


class TrustedKeys:
    def __init__(self, keys: Iterable[EllipticCurvePublicKey]) -> None:
        self._keys: dict[str, VerifyingKey] = {}
        for key in keys:
            kid = thumbprint(public_jwk(key))
            if verifying_key := to_verifying_key(kid, key):
                self._keys[kid] = verifying_key

    def verify(self, kid: str, message: bytes, signature: bytes) -> bool | None:
        """Whether the key with that thumbprint signed the message. None if the key is not trusted."""
        key = self._keys.get(kid)
        return None if key is None else key.verify(message, signature)


def load_trusted_keys(files: Iterable[Path]) -> TrustedKeys:
    """Raises KeyFileError, with a message for the operator, if a file cannot be read or has no P-256 key."""
    return TrustedKeys(key for file in files for key in _load_keys(file))


def _load_keys(file: Path) -> list[EllipticCurvePublicKey]:
    content = _read_file(file)
    keys = list(_keys_from_jwks(content) if content.lstrip().startswith(b"{") else _keys_from_pem(content))
    if not keys:
        raise KeyFileError(f"The file {file} contains no P-256 key in PEM or JWKS format.")
    return keys


def _read_file(file: Path) -> bytes:
    try:
        # Without O_NONBLOCK, opening a named pipe would block.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _FILE_MAX_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise KeyFileError(f"The key file {file} cannot be read: {error.strerror}.") from None


def _keys_from_jwks(content: bytes) -> Iterator[EllipticCurvePublicKey]:
    try:
        keys = parse_key_set(content)
    except ValueError:
        return
    for key in keys:
        if isinstance(key.public_key, EllipticCurvePublicKey):
            yield key.public_key


def _keys_from_pem(content: bytes) -> Iterator[EllipticCurvePublicKey]:
    key: object
    try:
        key = load_pem_public_key(content)
    except ValueError:
        try:
            key = load_pem_private_key(content, password=None)
        except (ValueError, TypeError):  # TypeError: the key has a passphrase
            return
    if isinstance(key, EllipticCurvePrivateKey):
        key = key.public_key()
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        yield key
