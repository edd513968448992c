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
from quarterdeck.engine.secrets import Ring, RingError, Safe, SecretSettings, key_check
from quarterdeck.engine.secrets.keyring import new_key, parse
from quarterdeck.engine.secrets.rotation import Rotation, Shelf
from quarterdeck.engine.transaction import Engine
from quarterdeck.http import secret_routes as routes
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.http.auth.secret_files import KeyFileError, create_secret, read_secret
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.secret_routes import SecretDesk
from quarterdeck.http.system_routes import CheckBearer
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store.migrate import sqlite_path

log = logging.getLogger("quarterdeck.secrets")


class Ground(Protocol):
    """What of the keel this stands on."""

    @property
    def settings(self) -> Settings: ...
    @property
    def metrics(self) -> Metrics: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def everywhere(self) -> Engine: ...


async def open_safe(ground: Ground, issuer: LocalIssuer, *, makes: bool) -> Safe:
    """Raises SettingsError with a sentence where the keys cannot be had, or are not the database's. `makes`: whether a
    first key is made; a daemon makes none, because the servers would not know it."""
    ring = open_ring(ground.settings, makes=makes)
    lost = {word.strip() for word in (_told(ground.settings).secret_keys_lost or "").split(",")}
    try:
        await ground.engine.transact(lambda tx: key_check.check(tx, ring, lost))
    except RingError as error:
        raise SettingsError(str(error)) from None
    safe = Safe(ring, issuer.derive("digests of what holds secrets"))
    ground.metrics.counter(
        "quarterdeck_secrets_unopened", "Sealed values that did not open, each time", "secrets", lambda: safe.unopened
    )
    return safe


def open_ring(settings: Settings, *, makes: bool) -> Ring:
    told = _told(settings).secret_keys
    source = f"{settings.found['secret_keys'].source}" if told else f"The key file {settings.secret_keys}"
    try:
        return Ring(parse(told if told else _from_file(settings, makes)))
    except RingError as error:
        raise SettingsError(f"{source}: {error}") from None


def _from_file(settings: Settings, makes: bool) -> str:
    path = settings.secret_keys
    try:
        content = read_secret(path)
        if content is None and makes:
            create_secret(path, f"{new_key().told()}\n".encode())
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
        raise RingError("it is no text.") from None


def lay(ground: Ground, safe: Safe, shelves: Sequence[Shelf], check_bearer: CheckBearer) -> list[Route]:
    rotation = Rotation(ground.engine, ground.everywhere, safe, shelves, zones.lock)
    return routes.routes(SecretDesk(rotation, check_bearer))


def _told(settings: Settings) -> SecretSettings:
    return settings.section(SecretSettings)
