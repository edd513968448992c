"""Secrets at rest: encrypted before they are written, decrypted for the holder of their task, masked for everyone else.

| module           | holds                                                                                      |
|------------------|--------------------------------------------------------------------------------------------|
| field_encryption | encryption, decryption and masking of stored JSON: the interface for components            |
| key_check        | the check, before serving, that this process has the keys of its database                  |
| keyring          | which key encrypts and which decrypt; the format of an encrypted value                     |
| rotation         | re-encryption of values under older keys, in bounded steps, while the server runs          |

`core.redaction` decides what is secret. An encrypted value is text, `qs1.<key id>.<nonce>.<ciphertext>` (AES-256-GCM),
bound to zone, table, row and field: if it is copied elsewhere or changed by one bit, it cannot be decrypted.

How it fails. A process does not start without all keys that its database was encrypted with. A value that still cannot
be decrypted (its key was removed, its row tampered with) is shown as `***`, counted, and logged without its content. It
never fails the claim, the list or the batch that contains it: other tasks must not wait for a lost key. If a server is
killed during a rotation, some values are under the new key and some are not. Both keys are in the keyring, so all of
them can be decrypted, and the next rotation continues.
"""

from quarterdeck.engine.secrets.field_encryption import FieldCipher
from quarterdeck.engine.secrets.keyring import (
    DecryptionError,
    FieldRef,
    Keyring,
    KeyringError,
    SecretKey,
    SecretSettings,
)

__all__ = ["DecryptionError", "FieldCipher", "FieldRef", "Keyring", "KeyringError", "SecretKey", "SecretSettings"]
