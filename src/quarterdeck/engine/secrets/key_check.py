"""Whether this process has the keys of its database: asked before it serves.

Each key that seals has left a word, sealed, in `secret_checks`. Who lacks one of these keys, or has another one of its
name, would show `***` to an agent that needs a password; so it does not start. A replica that made a key file of its
own is found by this, and so is a key that was taken away before what it had sealed was sealed anew.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from quarterdeck.engine.queries import Q
from quarterdeck.engine.secrets.keyring import DecryptionError, FieldRef, Keyring, KeyringError
from quarterdeck.engine.transaction import Transaction

log = logging.getLogger("quarterdeck.secrets")
CHECK_TEXT = "quarterdeck"


async def check_keys(tx: Transaction, keyring: Keyring, lost_key_ids: Collection[str]) -> None:
    """Raises RingError with a sentence. What is sealed from here on can be checked by whoever comes next."""
    _, rows = await tx.read(Q.secret_checks_lock(), Q.secret_checks_all())
    stored_checks = {str(key_id): str(sealed) for key_id, sealed in rows}
    for key_id, encrypted in stored_checks.items():
        if key_id in keyring.key_ids:
            _check_key(keyring, key_id, encrypted)
        elif key_id in lost_key_ids:
            log.warning("what was sealed with the lost key %r is shown as ***", key_id)
        else:
            raise _missing_key_error(key_id)
    if keyring.encryption_key_id not in stored_checks:
        tx.write(
            Q.secret_checks_add(
                key_id=keyring.encryption_key_id,
                sealed=keyring.encrypt(CHECK_TEXT, _field_ref(keyring.encryption_key_id)),
            )
        )


async def list_key_ids(tx: Transaction) -> list[str]:
    """The keys that values may be sealed with."""
    [rows] = await tx.read(Q.secret_checks_all())
    return [str(row[0]) for row in rows]


async def delete_key(tx: Transaction, key_id: str) -> bool:
    """Whether there was such a key: from now on servers start without it."""
    [rows] = await tx.read(Q.secret_checks_delete(key_id=key_id))
    return bool(rows)


def _check_key(keyring: Keyring, key_id: str, encrypted: str) -> None:
    try:
        keyring.decrypt(encrypted, _field_ref(key_id))
    except DecryptionError:
        raise KeyringError(
            f"The secrets of this database were sealed with another key of the name {key_id!r} than this server has."
        ) from None


def _field_ref(key_id: str) -> FieldRef:
    return ("", "secret_checks", key_id, "sealed")


def _missing_key_error(key_id: str) -> KeyringError:
    return KeyringError(
        f"Secrets of this database were sealed with the key {key_id!r}, which this server lacks. Name it in "
        "QD_SECRET_KEYS, as every server of the database must, or put the key file `secret-keys` of the first server "
        "into the data directory. If the key is lost for good: QD_SECRET_KEYS_LOST names those to go on without."
    )
