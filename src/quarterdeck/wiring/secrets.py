"""Opens the keys that encrypt secrets, and builds the cipher and the key rotation.

The keys come from QD_SECRET_KEYS, or from a file in the data directory that the first start creates. They are not
derived from the signing key: rotating that key must not make secrets unreadable. Before anything is served, the keys
are checked against the database. A server that lacks one of the database's keys does not start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from quarterdeck.core.routing import Route
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.secrets import FieldCipher, Keyring, KeyringError, SecretSettings, key_check
from quarterdeck.engine.secrets.keyring import generate_key, parse_keys
from quarterdeck.engine.secrets.rotation import SecretColumns, SecretRotation
from quarterdeck.engine.transaction import Engine
from quarterdeck.http import secret_routes as routes
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.http.auth.secret_files import KeyFileError, create_secret, read_secret
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.secret_routes import SecretHandlers
from quarterdeck.http.system_routes import CheckBearer
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store.migrate import sqlite_path

log = logging.getLogger("quarterdeck.secrets")


class SecretDeps(Protocol):
    """The part of `Runtime` that secrets use."""

    @property
    def settings(self) -> Settings: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def cross_zone_engine(self) -> Engine: ...


async def open_cipher(deps: SecretDeps, issuer: LocalIssuer, *, create_key: bool) -> FieldCipher:
    """Open the keys and check them against the database. Raises SettingsError if they are unreadable or do not match.

    With `create_key`, the first key is created if there is none. The sweeper daemon creates none, because the servers
    would not have it.
    """
    keyring = open_keyring(deps.settings, create_key=create_key)
    lost_key_ids = {key_id.strip() for key_id in (_secret_settings(deps.settings).secret_keys_lost or "").split(",")}
    try:
        await deps.engine.transact(lambda tx: key_check.check_keys(tx, keyring, lost_key_ids))
    except KeyringError as error:
        raise SettingsError(str(error)) from None
    cipher = FieldCipher(keyring, issuer.derive_secret("digests of what holds secrets"))
    deps.metrics.add_counter(
        "quarterdeck_secrets_unopened",
        "Failed decryptions of secret values",
        "secrets",
        lambda: cipher.decryption_failures,
    )
    return cipher


def open_keyring(settings: Settings, *, create_key: bool) -> Keyring:
    configured = _secret_settings(settings).secret_keys
    source = f"{settings.values['secret_keys'].source}" if configured else f"The key file {settings.secret_keys_path}"
    try:
        return Keyring(parse_keys(configured if configured else _read_key_file(settings, create_key)))
    except KeyringError as error:
        raise SettingsError(f"{source}: {error}") from None


def _read_key_file(settings: Settings, create_key: bool) -> str:
    path = settings.secret_keys_path
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
    if not sqlite_path(settings.database_url):
        log.warning(
            "secrets are encrypted with the keys in %s: every server of this database needs the same keys, so set "
            "QD_SECRET_KEYS for all of them",
            path,
        )
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise KeyringError("it is not ASCII text.") from None


def build_secret_routes(
    deps: SecretDeps, cipher: FieldCipher, secret_columns: Sequence[SecretColumns], check_bearer: CheckBearer
) -> list[Route]:
    rotation = SecretRotation(deps.engine, deps.cross_zone_engine, cipher, secret_columns, zones.lock_statement)
    return routes.routes(SecretHandlers(rotation, check_bearer))


def _secret_settings(settings: Settings) -> SecretSettings:
    return settings.section(SecretSettings)
