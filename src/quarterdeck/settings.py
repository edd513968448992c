"""Settings of the server. Only this module reads the environment.

Precedence: flag > environment > `quarterdeck.toml` in the data directory > default. Each component declares a struct of
its settings with bounds and descriptions; `SECTIONS` lists them, and `docs/settings.md` is generated from it. The field
`batch_max` is the variable `QD_BATCH_MAX` and the key `batch_max` of the file. `FLAGS` lists those that are flags too.

The shared variables (DATABASE_URL, PORT, …) are names that other programs use too. They rank after the `QD_*` variables
and are ignored when the server was started automatically: a laptop's shell may hold the DATABASE_URL of another
project. The server does not start with an unknown `QD_*` variable, an unknown key in the file, or an invalid value.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import FieldInfo, fields

from quarterdeck.core.clock import Millis, system_now
from quarterdeck.core.redaction import mask_passwords
from quarterdeck.domain.coordination.model import CoordinationSettings
from quarterdeck.domain.delegations.model import DelegationSettings
from quarterdeck.domain.fleets.model.rows import FleetSettings
from quarterdeck.domain.invocations.model import InvocationSettings
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.sessions.model import SessionSettings
from quarterdeck.domain.tasks.model.rows import TaskSettings
from quarterdeck.domain.webhooks.model import WebhookSettings
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.secrets.keyring import SecretSettings
from quarterdeck.engine.settings import EngineSettings, LogSettings, ServerSettings, SettingsError, SinkSettings
from quarterdeck.http.auth.model import AuthSettings
from quarterdeck.http.stream_limits import StreamSettings

S = TypeVar("S", bound=msgspec.Struct)
FILE_NAME = "quarterdeck.toml"


SECTIONS: Mapping[type[msgspec.Struct], str] = {
    ServerSettings: "Server",
    AuthSettings: "Authentication",
    StreamSettings: "Event streams",
    EngineSettings: "Lanes",
    LogSettings: "Event log",
    SinkSettings: "Redis",
    SecretSettings: "Secrets",
    SessionSettings: "Sessions",
    ServiceSettings: "Services",
    DelegationSettings: "Delegations",
    InvocationSettings: "Invocations",
    TaskSettings: "Tasks",
    CoordinationSettings: "Coordinator and launchers",
    WebhookSettings: "Webhooks",
    FleetSettings: "Fleets",
    Limits: "Limits of sessions",
}
"""Every setting is a field of one of these structs. The text is the heading in `docs/settings.md`."""
SHARED_NAMES = {
    "port": "PORT",
    "database_url": "DATABASE_URL",
    "db_pool_max": "DB_POOL_MAX",
    "issuer_url": "ISSUER_URL",
    "sts_url": "STS_URL",
    "lifecycle_scope": "AGENT_COORDINATOR_SCOPE",
    "jwks_cache_max": "JWKS_CACHE_MAX",
    "ttl_sweep_interval_ms": "TTL_SWEEP_INTERVAL_MS",
    "deadline_sweep_interval_ms": "DEADLINE_SWEEP_INTERVAL_MS",
    "delegation_retention_days": "DELEGATION_RETENTION_DAYS",
    "event_retention_days": "EVENT_RETENTION_DAYS",
    "retention_cleanup_interval_ms": "RETENTION_CLEANUP_INTERVAL_MS",
    "redis_url": "REDIS_URL",
    "streams_hmac_key": "STREAMS_HMAC_KEY",
    "outbox_interval_ms": "OUTBOX_INTERVAL_MS",
    "outbox_batch_size": "OUTBOX_BATCH_SIZE",
    "outbox_max_attempts": "OUTBOX_MAX_ATTEMPTS",
    "outbox_retention_days": "OUTBOX_RETENTION_DAYS",
    "shutdown_grace_ms": "SHUTDOWN_GRACE_MS",
    "log_level": "LOG_LEVEL",
    "gateway_url": "GATEWAY_URL",
}
SECRETS = frozenset({"streams_hmac_key", "secret_keys"})
"""Settings that are never displayed, not even in the error for an invalid value."""
FLAGS = {"host": "--host", "port": "--port", "database_url": "--database"}
NOT_SETTINGS = re.compile(
    r"QD_(DATA|URL|SERVER|TOKEN|ZONE|FLEET_ID|AGENT_ID|MAX_TEXT_LEN|ROUNDS|SOAK_SECONDS|SEED|TEST_.*|WRITE_.*|BENCH_.*)"
)
"""Variables of the CLI and the tests, which the server ignores. Matched against the full name: otherwise a misspelled
QD_DATABASE_URL would match QD_DATA."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source."""

    name: str
    value: object
    source: str

    def display_value(self) -> str:
        """The value as text, with secrets and passwords in URLs masked."""
        return "" if self.value is None else mask(str(self.value), self.name)


@dataclass(frozen=True, slots=True)
class Settings:
    data: Path
    values: Mapping[str, Setting]
    clock: Callable[[], Millis] = system_now
    """The clock of the SQLite store. PostgreSQL uses the database's clock. Tests replace it."""

    def section(self, section_type: type[S]) -> S:
        return section_type(**{field.name: self.values[field.name].value for field in fields(section_type)})

    def source(self, name: str) -> str:
        """Where the value of a setting comes from: a flag, a variable, the file, or `default`."""
        return self.values[name].source

    @property
    def server(self) -> ServerSettings:
        return self.section(ServerSettings)

    @property
    def database_url(self) -> str:
        return self.server.database_url or f"sqlite:///{self.data / 'quarterdeck.db'}"

    @property
    def signing_key_path(self) -> Path:
        configured = self.server.signing_key
        return Path(configured) if configured else self.data / "signing-key.pem"

    @property
    def secret_keys_path(self) -> Path:
        """The file of the encryption keys, used when the setting `secret_keys` is empty."""
        return self.data / "secret-keys"


def load_settings(
    data: Path,
    flags: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    *,
    use_shared_variables: bool = True,
) -> Settings:
    environment = os.environ if environment is None else environment
    file_values = _read_file(data / FILE_NAME)
    fields_by_name = {field.name: field for section in SECTIONS for field in fields(section)}
    _reject_unknown(fields_by_name, environment, file_values)
    values = {}
    for name, field in fields_by_name.items():
        variable = f"QD_{name.upper()}"
        shared_name = SHARED_NAMES.get(name) if use_shared_variables else None
        if name in flags:
            values[name] = _parse(field, flags[name], FLAGS.get(name, f"--{name}"))
        elif variable in environment:
            values[name] = _parse(field, environment[variable], variable)
        elif shared_name and environment.get(shared_name):
            values[name] = _parse(field, environment[shared_name], shared_name)
        elif name in file_values:
            values[name] = _parse(field, file_values[name], FILE_NAME)
        else:
            values[name] = Setting(name, field.default, "default")
    return Settings(data, values)


def environment() -> Mapping[str, str]:
    """The process environment, for the composition root, which passes it on."""
    return os.environ


def mask(text: str, name: str = "") -> str:
    """Mask the passwords of a URL. Mask the value of a secret (`name`) entirely."""
    return "***" if name in SECRETS else mask_passwords(text)


def _read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error


def _reject_unknown(
    fields_by_name: Mapping[str, FieldInfo], environment: Mapping[str, str], file_values: Mapping[str, object]
) -> None:
    variables = {f"QD_{name.upper()}" for name in fields_by_name}
    for name in sorted(environment):
        if name.startswith("QD_") and name not in variables and not NOT_SETTINGS.fullmatch(name):
            raise SettingsError(f"{name} is not a setting. `qd config show` lists all settings.")
    for name in sorted(file_values):
        if name not in fields_by_name:
            raise SettingsError(f"{FILE_NAME}: {name} is not a setting. `qd config show` lists all settings.")


def _parse(field: FieldInfo, value: object, source: str) -> Setting:
    try:
        parsed: object = msgspec.convert(value, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source} is {mask(str(value), field.name)!r}: {error}.") from None
    return Setting(field.name, parsed, source)
