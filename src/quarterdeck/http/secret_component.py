"""Opens the keys that encrypt secrets, and builds the cipher and the key rotation.

The keys come from QD_SECRET_KEYS, or from a file in the data directory that the first start creates. They are not
derived from the signing key: rotating that key must not make secrets unreadable. Before anything is served, the keys
are checked against the database. A server that lacks one of the database's keys does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from quarterdeck.core import metric_table
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.runtime import Component, Runtime, SettingsReader
from quarterdeck.engine.secrets import FieldCipher, Keyring, KeyringError, SecretSettings, key_check
from quarterdeck.engine.secrets.keyring import generate_key, parse_keys
from quarterdeck.engine.secrets.rotation import SecretColumns, SecretRotation
from quarterdeck.engine.settings import SettingsError
from quarterdeck.http import secret_routes as routes
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.http.auth.secret_files import KeyFileError, create_secret, read_secret
from quarterdeck.http.secret_routes import SecretHandlers
from quarterdeck.http.system_routes import CheckBearer

log = logging.getLogger("quarterdeck.secrets")


async def open_cipher(runtime: Runtime, issuer: LocalIssuer, key_file: Path, *, create_key: bool) -> FieldCipher:
    """Open the keys and check them against the database. Raises SettingsError if they are unreadable or do not match.

    With `create_key`, the first key is created in `key_file` if there is none. The sweeper daemon creates none, because
    the servers would not have it.
    """
    settings = runtime.settings.section(SecretSettings)
    keyring = open_keyring(runtime.settings, key_file, create_key=create_key)
    if not settings.secret_keys and runtime.stores[0].kind != "sqlite":
        log.warning(
            "secrets are encrypted with the keys in %s: every server of this database needs the same keys, so set "
            "QD_SECRET_KEYS for all of them",
            key_file,
        )
    lost_key_ids = {key_id.strip() for key_id in (settings.secret_keys_lost or "").split(",")}
    try:
        await runtime.engine.transact(lambda tx: key_check.check_keys(tx, keyring, lost_key_ids))
    except KeyringError as error:
        raise SettingsError(str(error)) from None
    cipher = FieldCipher(keyring, issuer.derive_secret("digests of what holds secrets"))
    runtime.metrics.add(metric_table.SECRETS_UNOPENED, "secrets", lambda: cipher.decryption_failures)
    return cipher


def open_keyring(settings: SettingsReader, key_file: Path, *, create_key: bool) -> Keyring:
    configured = settings.section(SecretSettings).secret_keys
    source = settings.source("secret_keys") if configured else f"The key file {key_file}"
    try:
        return Keyring(parse_keys(configured if configured else _read_key_file(key_file, create_key)))
    except KeyringError as error:
        raise SettingsError(f"{source}: {error}") from None


def _read_key_file(path: Path, create_key: bool) -> str:
    try:
        content = read_secret(path)
        if content is None and create_key:
            create_secret(path, f"{generate_key().to_text()}\n".encode())
            # Read it back: if another process created the file first, that key is used.
            content = read_secret(path)
    except KeyFileError as error:
        raise SettingsError(str(error)) from None
    if content is None:
        raise SettingsError(
            f"There is no key for secrets at {path}. `qd sweep` needs the servers' keys: set QD_SECRET_KEYS, or --data "
            "to their data directory."
        )
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise KeyringError("it is not ASCII text.") from None


def build_secrets(
    runtime: Runtime, cipher: FieldCipher, secret_columns: Sequence[SecretColumns], check_bearer: CheckBearer
) -> Component:
    rotation = SecretRotation(runtime.engine, runtime.cross_zone_engine, cipher, secret_columns, zones.lock_statement)
    return Component(routes.routes(SecretHandlers(rotation, check_bearer)))
