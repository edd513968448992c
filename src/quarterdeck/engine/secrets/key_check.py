"""Checks, before serving, that this process has the keys of its database.

For each key in use, `secret_checks` holds a check text encrypted with it. A process that lacks one of these keys, or
has a different key with the same id, would return `***` to an agent that needs a password, so it does not start. The
check detects a replica that generated its own key file, and a key that was removed before its values were re-encrypted.
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
    """Raise `KeyringError` if a key is missing or wrong. Store a check text for the current key if there is none."""
    _, rows = await tx.read(Q.secret_checks_lock(), Q.secret_checks_all())
    stored_checks = {str(key_id): str(sealed) for key_id, sealed in rows}
    for key_id, encrypted in stored_checks.items():
        if key_id in keyring.key_ids:
            _check_key(keyring, key_id, encrypted)
        elif key_id in lost_key_ids:
            log.warning("secrets under the lost key %r are shown as ***", key_id)
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
    """The keys that values may be encrypted with."""
    [rows] = await tx.read(Q.secret_checks_all())
    return [str(row[0]) for row in rows]


async def delete_check(tx: Transaction, key_id: str) -> bool:
    """Delete the check text of a key, so that servers start without the key. Return whether there was one."""
    return await tx.has_rows(Q.secret_checks_delete(key_id=key_id))


def _check_key(keyring: Keyring, key_id: str, encrypted: str) -> None:
    try:
        keyring.decrypt(encrypted, _field_ref(key_id))
    except DecryptionError:
        raise KeyringError(
            f"The key {key_id!r} of this server is not the key {key_id!r} that encrypted the secrets of this database. "
            "Correct QD_SECRET_KEYS or the key file `secret-keys`."
        ) from None


def _field_ref(key_id: str) -> FieldRef:
    return ("", "secret_checks", key_id, "sealed")


def _missing_key_error(key_id: str) -> KeyringError:
    return KeyringError(
        f"Secrets of this database were encrypted with the key {key_id!r}, which this server lacks. Add it to "
        "QD_SECRET_KEYS, as on every server of the database, or copy the first server's key file `secret-keys` "
        "to the data directory. If the key is lost, list it in QD_SECRET_KEYS_LOST to start without it."
    )
