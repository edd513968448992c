"""Settings: flag > environment > quarterdeck.toml > default, and a readable error for an invalid value."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import fields

from quarterdeck.domain.coordination.model import (
    CoordinationSettings,
    HttpLauncherConfig,
    ProcessLauncherConfig,
    launcher_configs,
)
from quarterdeck.domain.fleets.model.rows import CodingAgentConfig, FleetSettings
from quarterdeck.domain.zones.model import CEILINGS, Limits
from quarterdeck.engine.settings import EngineSettings, SettingsError
from quarterdeck.http.auth import AuthSettings
from quarterdeck.settings import FILE_NAME, FLAGS, SECTIONS, SHARED_NAMES, Settings, load_settings, mask

EXAMPLES = {
    "host": ("127.0.0.2", "127.0.0.3", "127.0.0.4"),
    "database_url": ("sqlite:///a", "sqlite:///b", "sqlite:///c"),
    "signing_key": ("a.pem", "b.pem", "c.pem"),
    "log_level": ("debug", "warning", "error"),
    "issuer_url": ("https://a.example", "https://b.example", "https://c.example"),
    "sts_url": ("https://a.example", "https://b.example", "https://c.example"),
    "admin_issuer": ("https://a.example", "https://b.example", "https://c.example"),
    "lifecycle_scope": ("a", "b", "c"),
    "redis_url": ("redis://a.example", "redis://b.example", "redis://c.example"),
    "streams_hmac_key": ("a" * 16, "b" * 16, "c" * 16),
    "gateway_url": ("https://a.example", "https://b.example", "https://c.example"),
    "secret_keys": ("a:a", "b:b", "c:c"),
    "secret_keys_lost": ("a", "b", "c"),
    "sweeps": ("false", "true", "false"),
    "push_private_addresses": ("false", "true", "false"),
}
"""Three values for each setting that is not a number."""
TABLES = {"launchers", "coding_agents"}
"""Settings that are tables, so they can only be set in the file."""
NAMES = [field.name for section in SECTIONS for field in fields(section) if field.name not in TABLES]


def values(name: str) -> tuple[str, str, str]:
    return EXAMPLES.get(name, ("41", "42", "43") if name != "lease_ms" else ("410", "420", "430"))


def write(directory: Path, text: str) -> None:
    (directory / FILE_NAME).write_text(text, encoding="utf-8")


def found(settings: Settings, name: str) -> tuple[str, str]:
    setting = settings.values[name]
    if isinstance(setting.value, bool):
        return str(setting.value).lower(), setting.source
    return (f"{setting.value:g}" if isinstance(setting.value, float) else str(setting.value)), setting.source


@pytest.mark.parametrize("name", NAMES)
def test_flag_overrides_environment_overrides_file_overrides_default(name: str, tmp_path: Path) -> None:
    in_file, in_environment, as_flag = values(name)
    variable, flag = f"QD_{name.upper()}", FLAGS.get(name)
    assert load_settings(tmp_path, {}, {}).values[name].source == "default"
    quoted = f'"{in_file}"' if name in EXAMPLES else in_file
    write(tmp_path, f"{name} = {quoted}\n")
    assert found(load_settings(tmp_path, {}, {}), name) == (in_file, FILE_NAME)
    assert found(load_settings(tmp_path, {}, {variable: in_environment}), name) == (in_environment, variable)
    if flag is not None:
        assert found(load_settings(tmp_path, {name: as_flag}, {variable: in_environment}), name) == (as_flag, flag)


LAUNCHERS = """
[launchers.local]
kind = "process"
command = ["agent", "--once"]
environment = ["PATH"]
task_types = ["research", "review"]

[launchers.far]
kind = "http"
url = "https://gateway.example"
headers = { Authorization = "GATEWAY_TOKEN" }
"""


def test_launchers_are_tables_of_the_file_and_include_the_gateway(tmp_path: Path) -> None:
    write(tmp_path, LAUNCHERS)
    section = load_settings(tmp_path, {}, {"GATEWAY_URL": "http://gateway.example"}).section(CoordinationSettings)
    found = launcher_configs(section)
    assert found["local"] == ProcessLauncherConfig(
        command=("agent", "--once"), environment=("PATH",), task_types=("research", "review")
    )
    assert found["far"] == HttpLauncherConfig(url="https://gateway.example", headers={"Authorization": "GATEWAY_TOKEN"})
    assert found["gateway"] == HttpLauncherConfig(url="http://gateway.example")


def test_coding_agents_are_tables_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, "[coding_agents.aider]\nargv = ['aider', '{name}']\nprocesses = ['aider', 'python3']\n")
    section = load_settings(tmp_path, {}, {}).section(FleetSettings)
    aider = CodingAgentConfig(argv=("aider", "{name}"), processes=("aider", "python3"))
    assert section.coding_agents == {"aider": aider}


@pytest.mark.parametrize(
    "content",
    [
        'launchers = "sh -c true"',
        "[launchers.x]\nkind = 'shell'\ncommand = ['sh']",
        "[launchers.x]\nkind = 'process'\ncommand = []",
        "[launchers.x]\nkind = 'process'\ncommand = 'sh -c true'",
        "[launchers.x]\nkind = 'process'\ncommand = ['sh']\nargs = ['x']",
        "[launchers.x]\nkind = 'process'\ncommand = ['sh']\ntask_types = []",
        "[launchers.x]\nkind = 'http'\nurl = 'file:///etc/passwd'",
        "[launchers.'a b']\nkind = 'http'\nurl = 'http://a'",
        "[coding_agents.x]\nargv = []\nprocesses = ['x']",
        "[coding_agents.x]\nargv = ['x']\ncommand = 'x'",
        "[coding_agents.x]\nargv = 'sh -c x'\nprocesses = ['x']",
        "[coding_agents.'a b']\nargv = ['x']\nprocesses = ['x']",
    ],
)
def test_malformed_launcher_or_coding_agent_stops_the_start_with_an_error(content: str, tmp_path: Path) -> None:
    write(tmp_path, content + "\n")
    with pytest.raises(SettingsError, match=rf"^{FILE_NAME} is "):
        load_settings(tmp_path, {}, {})


@pytest.mark.parametrize(("name", "shared"), SHARED_NAMES.items())
def test_shared_variable_counts_as_environment_after_the_own_name(name: str, shared: str, tmp_path: Path) -> None:
    in_file, given, own = values(name)
    write(tmp_path, f'{name} = "{in_file}"\n')
    assert found(load_settings(tmp_path, {}, {shared: given}), name) == (given, shared)
    both = {shared: given, f"QD_{name.upper()}": own}
    assert found(load_settings(tmp_path, {}, both), name) == (own, f"QD_{name.upper()}")
    assert found(load_settings(tmp_path, {}, {shared: given}, use_shared_variables=False), name) == (in_file, FILE_NAME)
    assert found(load_settings(tmp_path, {}, {shared: ""}), name) == (in_file, FILE_NAME), "set to nothing is not set"


def test_shared_variables_are_not_read_when_disabled_even_if_malformed(tmp_path: Path) -> None:
    shell = {"PORT": "tcp://172.17.0.2:80", "DATABASE_URL": "mysql://elsewhere", "LOG_LEVEL": "chatty"}
    settings = load_settings(tmp_path, {}, shell, use_shared_variables=False)
    assert (settings.server.port, settings.server.database_url) == (4000, None)
    with pytest.raises(SettingsError, match=r"^(LOG_LEVEL|PORT) is "):
        load_settings(tmp_path, {}, shell)


def test_the_contracts_variables_are_read_by_their_own_names() -> None:
    served = {
        "PORT", "DATABASE_URL", "REDIS_URL", "STS_URL", "ISSUER_URL", "AGENT_COORDINATOR_SCOPE", "DB_POOL_MAX",
        "OUTBOX_INTERVAL_MS", "OUTBOX_BATCH_SIZE", "OUTBOX_MAX_ATTEMPTS", "TTL_SWEEP_INTERVAL_MS",
        "DEADLINE_SWEEP_INTERVAL_MS", "RETENTION_CLEANUP_INTERVAL_MS", "DELEGATION_RETENTION_DAYS",
        "OUTBOX_RETENTION_DAYS", "JWKS_CACHE_MAX", "SHUTDOWN_GRACE_MS", "LOG_LEVEL",
    }  # fmt: skip
    assert served <= set(SHARED_NAMES.values())


def test_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {}, {})
    assert (settings.server.host, settings.server.port, settings.server.log_level) == ("127.0.0.1", 4000, "info")
    assert settings.database_url == f"sqlite:///{tmp_path / 'quarterdeck.db'}"
    assert settings.section(AuthSettings).lifecycle_scope == "agent:lifecycle"
    assert settings.section(Limits) == Limits(10, 10, 50, 500, 50, 50, 200)
    assert settings.values["ttl_sweep_interval_ms"].value == 60_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QD_PORT", "http"), ("QD_PORT", "65536"), ("QD_PORT", "-1"), ("QD_PORT", ""), ("QD_PORT", "4000.5"),
        ("QD_LOG_LEVEL", "loud"), ("QD_DB_POOL_MAX", "1"), ("QD_BATCH_MAX", "0"), ("QD_QUEUE_MAX", "lots"),
        ("QD_TTL_SWEEP_INTERVAL_MS", "9"), ("QD_SHUTDOWN_GRACE_MS", "soon"), ("QD_HOST", ""),
        ("QD_MAX_DEPTH", "101"), ("QD_MAX_SESSIONS", "-1"), ("QD_MAX_CHILDREN", "ten"),
    ],
)  # fmt: skip
def test_malformed_value_stops_the_start_with_an_error_that_names_it(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(tmp_path, {}, {name: value})
    assert str(refusal.value).startswith(f"{name} is {value!r}: ")
    assert str(refusal.value).endswith(".")


def test_malformed_flag_and_file_entry_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^--port is 'http': "):
        load_settings(tmp_path, {"port": "http"}, {})
    write(tmp_path, "port = [4000]\n")
    with pytest.raises(SettingsError, match=rf"^{FILE_NAME} is "):
        load_settings(tmp_path, {}, {})


@pytest.mark.parametrize(
    "name", ["QD_PROT", "QD_DATABASE", "QD_DATABSE_URL", "QD_DATA_DIR", "QD_URLS", "QD_Port", "QD_", "QD_ZONES"]
)
def test_unknown_variable_stops_the_start_even_if_it_starts_like_a_known_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"^{name} is not a setting"):
        load_settings(tmp_path, {}, {name: "x"})


@pytest.mark.parametrize(
    "name",
    ["QD_DATA", "QD_URL", "QD_TOKEN", "QD_ZONE", "QD_ROUNDS", "QD_SOAK_SECONDS", "QD_SEED", "QD_TEST_POSTGRES_URL"],
)
def test_variables_of_the_command_line_and_of_tests_are_ignored(name: str, tmp_path: Path) -> None:
    load_settings(tmp_path, {}, {name: "x", "PATH": "x", "QDX": "x"})


def test_unknown_name_in_the_file_stops_the_start(tmp_path: Path) -> None:
    write(tmp_path, "prot = 4000\n")
    with pytest.raises(SettingsError, match=f"^{FILE_NAME}: prot is not a setting"):
        load_settings(tmp_path, {}, {})


@pytest.mark.parametrize("content", [b"port = ", b"port 4000", b"[", b"\xff\xfe", b"port = 1\nport = 2\n"])
def test_file_that_is_not_toml_stops_the_start(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(SettingsError, match="is not valid TOML"):
        load_settings(tmp_path, {}, {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:pw@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:p@w@host:5432/db", "postgresql://user:***@host:5432/db"),
        ("postgresql://user:p:w@host/db", "postgresql://user:***@host/db"),
        ("postgresql://:pw@host/db", "postgresql://:***@host/db"),
        ("postgresql://host/db?user=u&password=pw", "postgresql://host/db?user=u&password=***"),
        ("postgresql://u:pw@host/db?sslpassword=pw&x=1", "postgresql://u:***@host/db?sslpassword=***&x=1"),
        ("host=h user=u password=pw dbname=d", "host=h user=u password=*** dbname=d"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("sqlite:////var/lib/quarterdeck.db", "sqlite:////var/lib/quarterdeck.db"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_password_is_masked_wherever_a_url_may_contain_one(url: str, shown: str) -> None:
    assert mask(url) == shown


def test_secret_is_never_shown_even_if_malformed(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {}, {"STREAMS_HMAC_KEY": "hush hush hush hush", "REDIS_URL": "redis://u:hush@h"})
    shown = {name: setting.display_value() for name, setting in settings.values.items()}
    assert (shown["streams_hmac_key"], shown["redis_url"]) == ("***", "redis://u:***@h")
    with pytest.raises(SettingsError, match=r"^STREAMS_HMAC_KEY is ") as refusal:
        load_settings(tmp_path, {}, {"STREAMS_HMAC_KEY": "hush"})
    assert "hush" not in str(refusal.value)


def test_malformed_value_is_shown_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(tmp_path, {}, {"QD_PORT": "postgresql://user:hush@host/db"})
    assert "hush" not in str(refusal.value)


def test_every_setting_has_one_name_and_every_number_has_bounds(tmp_path: Path) -> None:
    assert len(set(NAMES)) == len(NAMES)
    for name in CEILINGS:
        with pytest.raises(SettingsError, match=f"^QD_{name.upper()} is "):
            load_settings(tmp_path, {}, {f"QD_{name.upper()}": str(CEILINGS[name] + 1)})
    assert load_settings(tmp_path, {}, {"QD_QUEUE_MAX": "7"}).section(EngineSettings).queue_max == 7
