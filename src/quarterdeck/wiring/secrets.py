"""A part of the composition root: the keys that secrets are sealed with, and what is built on them.

Keys are told (QD_SECRET_KEYS), or lie in a file of the data directory that the first start makes. Nothing is derived
from another key: whoever rotates the one must not lose what the other has sealed. Before anything is served the
database is asked whether these are its keys; a server that lacks one says so and does not start.
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
    """What of the keel this stands on."""

    @property
    def settings(self) -> Settings: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def cross_zone_engine(self) -> Engine: ...


async def open_cipher(deps: SecretDeps, issuer: LocalIssuer, *, create_key: bool) -> FieldCipher:
    """Raises SettingsError with a sentence where the keys cannot be had, or are not the database's. `makes`: whether a
    first key is made; a daemon makes none, because the servers would not know it."""
    keyring = open_keyring(deps.settings, create_key=create_key)
    lost = {key_id.strip() for key_id in (_secret_settings(deps.settings).secret_keys_lost or "").split(",")}
    try:
        await deps.engine.transact(lambda tx: key_check.check_keys(tx, keyring, lost))
    except KeyringError as error:
        raise SettingsError(str(error)) from None
    cipher = FieldCipher(keyring, issuer.derive_secret("digests of what holds secrets"))
    deps.metrics.add_counter(
        "quarterdeck_secrets_unopened",
        "Sealed values that did not open, each time",
        "secrets",
        lambda: cipher.decryption_failures,
    )
    return cipher


def open_keyring(settings: Settings, *, create_key: bool) -> Keyring:
    configured = _secret_settings(settings).secret_keys
    source = f"{settings.values['secret_keys'].source}" if configured else f"The key file {settings.secret_keys}"
    try:
        return Keyring(parse_keys(configured if configured else _read_key_file(settings, create_key)))
    except KeyringError as error:
        raise SettingsError(f"{source}: {error}") from None


def _read_key_file(settings: Settings, create_key: bool) -> str:
    path = settings.secret_keys
    try:
        content = read_secret(path)
        if content is None and create_key:
            create_secret(path, f"{generate_key().to_text()}\n".encode())
            # Read back even so: another process may have been first, and then its key is the one.
            content = read_secret(path)
    except KeyFileError as error:
        raise SettingsError(str(error)) from None
    if content is None:
        raise SettingsError(
            f"There is no key for secrets at {path}. `qd sweep` needs those of the servers: tell it QD_SECRET_KEYS, or "
            "name their data directory with --data."
        )
    if not sqlite_path(settings.database_url):
        log.warning(
            "secrets are sealed with the keys in %s: every other server of this database must have the same, so tell "
            "all of them QD_SECRET_KEYS",
            path,
        )
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise KeyringError("it is no text.") from None


def build_secret_routes(
    deps: SecretDeps, cipher: FieldCipher, secret_columns: Sequence[SecretColumns], check_bearer: CheckBearer
) -> list[Route]:
    rotation = SecretRotation(deps.engine, deps.cross_zone_engine, cipher, secret_columns, zones.lock_statement)
    return routes.routes(SecretHandlers(rotation, check_bearer))


def _secret_settings(settings: Settings) -> SecretSettings:
    return settings.section(SecretSettings)
