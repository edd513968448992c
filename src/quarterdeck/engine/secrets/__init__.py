"""Secrets at rest: sealed before they are written, opened for whoever holds what they belong to, masked for all others.

| module   | what it decides                                                                              |
|----------|------------------------------------------------------------------------------------------------|
| ring     | which key seals and which ones open; the form of a sealed value; that it was not moved or changed |
| safe     | what of a JSON text is sealed, opened, masked: the only thing that rooms see of all this           |
| rotation | how what older keys have sealed is sealed anew, in bounded steps, beside everything else            |
| checks   | whether this process has the keys of its database, before it serves                               |

What is secret is `core.redaction`'s to say. A sealed value is text, `qs1.<key id>.<nonce>.<ciphertext>` (AES-256-GCM),
bound to zone, table, row and field: copied elsewhere, or changed by a bit, it does not open.

How it fails. A process that lacks a key that its database was sealed with does not start. A value that does not open
all the same (its key was taken away, its row tampered with) is shown as `***`, counted and logged without its content;
it never fails the claim, the list or the batch in which it stands: other tasks must not wait for a lost key. A server
that is killed in the middle of a rotation has sealed some values with the new key and some not; both keys are in the
ring, everything opens, and the next rotation goes on.
"""

from quarterdeck.engine.secrets.field_encryption import FieldCipher, FieldRef
from quarterdeck.engine.secrets.keyring import DecryptionError, Keyring, KeyringError, SecretKey, SecretSettings

__all__ = ["DecryptionError", "FieldCipher", "FieldRef", "Keyring", "KeyringError", "SecretKey", "SecretSettings"]
