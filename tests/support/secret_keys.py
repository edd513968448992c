"""Keys and ciphers for tests of encrypted fields."""

from __future__ import annotations

from quarterdeck.engine.secrets import FieldCipher, Keyring, SecretKey

OLD_KEY, NEW_KEY = SecretKey("old", b"o" * 32), SecretKey("new", b"n" * 32)


def cipher_of(*keys: SecretKey) -> FieldCipher:
    return FieldCipher(Keyring(keys), b"p" * 32)
