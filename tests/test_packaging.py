"""The client runs without the server's libraries and without what only POSIX systems have."""

from __future__ import annotations

import fcntl
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from quarterdeck.client.server_package import SERVER_LIBRARIES
from tests.support.child_processes import minimal_environment
from tests.support.server import ServerProcess
from tests.support.source import ROOT, SRC

DATABASE_LIBRARIES = ("psycopg", "psycopg_pool", "redis", "sqlite3")
POSIX_MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
CLIENT_PACKAGES = ("core", "client", "cli", "sdk")
NOT_IN_THE_CLIENT = {
    # Modules of the client's packages that only the server and commands for a terminal import, when they run.
    "quarterdeck.core.webhook_signing",
    "quarterdeck.cli.terminal",
}
_PREPARE = """
import sys
sys.path.insert(0, {source!r})


class WithoutModules:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {blocked!r} else self.finder.find_spec(name, path, target)


def remove(names):
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]
    sys.meta_path[:] = [WithoutModules(finder) for finder in sys.meta_path]


remove({blocked!r})
"""
_LIKE_WINDOWS = """
# The standard library chooses its own modules by the platform when it is imported, so it is imported first.
import asyncio, concurrent.futures, multiprocessing, os, select, selectors, signal, socket, ssl, subprocess, tempfile
import click, ctypes, http.client, importlib.metadata, logging.handlers, msgspec, pathlib, random, shutil, uuid, zipfile
import click.shell_completion, click._compat

sys.platform = "win32"
for module, names in (
    (os, ("O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "getuid", "geteuid", "killpg", "fork", "pread", "uname", "setsid")),
    (signal, ("SIGALRM", "SIGHUP", "SIGTSTP", "SIGWINCH", "SIGPIPE", "setitimer", "ITIMER_REAL")),
    (select, ("poll",)),
):
    for name in names:
        delattr(module, name)
"""
_IMPORT_CLIENT = """
import importlib, pkgutil

for package in {packages!r}:
    parent = importlib.import_module("quarterdeck." + package)
    for module in pkgutil.walk_packages(parent.__path__, parent.__name__ + "."):
        if module.name not in {left_out!r}:
            importlib.import_module(module.name)
"""
_RUN_QD = """
from quarterdeck.cli.main import main

sys.exit(main())
"""
_CALL_SDK = """
from quarterdeck.sdk.sync import Quarterdeck

with Quarterdeck.connect(url={url!r}, token={token!r}) as qd:
    session = qd.sessions.spawn(application_id="client")
    print(qd.sessions.get(session.id).status)
"""


def run_python(
    *parts: str, blocked: Sequence[str], arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    program = _PREPARE.format(source=str(SRC.parent), blocked=tuple(blocked)) + "".join(parts)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**minimal_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_client_imports_neither_posix_modules_nor_server_libraries() -> None:
    result = run_python(
        _LIKE_WINDOWS,
        _IMPORT_CLIENT.format(packages=CLIENT_PACKAGES, left_out=NOT_IN_THE_CLIENT),
        blocked=(*SERVER_LIBRARIES, *DATABASE_LIBRARIES, *POSIX_MODULES),
    )
    assert result.returncode == 0, result.stderr


def test_client_without_posix_reaches_a_server_elsewhere(sqlite_server: ServerProcess, tmp_path: Path) -> None:
    blocked = (*SERVER_LIBRARIES, *DATABASE_LIBRARIES, *POSIX_MODULES)
    where = ["--url", sqlite_server.url, "--token", sqlite_server.admin_token, "--data", str(tmp_path)]
    spawned = run_python(
        _LIKE_WINDOWS, _RUN_QD, blocked=blocked, arguments=["session", "spawn", "--app", "client", "--json", *where]
    )
    assert spawned.returncode == 0, spawned.stderr
    assert json.loads(spawned.stdout)["status"] == "active"
    call = _CALL_SDK.format(url=sqlite_server.url, token=sqlite_server.admin_token)
    called = run_python(_LIKE_WINDOWS, call, blocked=blocked)
    assert (called.returncode, called.stdout) == (0, "active\n"), called.stderr


@pytest.mark.parametrize(
    "words", [["up"], ["db", "status"], ["check"], ["audit", "verify"], ["token"], ["session", "list"]], ids=" ".join
)
def test_command_that_needs_the_server_names_the_package_to_install(words: list[str], tmp_path: Path) -> None:
    """`session list` would start a server automatically."""
    result = run_python(
        _RUN_QD, blocked=SERVER_LIBRARIES, arguments=words, environment={"QD_DATA": str(tmp_path / "data")}
    )
    assert result.returncode == 1
    assert result.stderr.startswith("qd: ") and result.stderr.count("\n") == 1
    assert "pip install 'quarterdeck[server]'" in result.stderr
    assert not (tmp_path / "data").exists()


def test_command_that_needs_the_server_says_that_windows_has_none(tmp_path: Path) -> None:
    result = run_python(
        _LIKE_WINDOWS, _RUN_QD, blocked=POSIX_MODULES, arguments=["up"], environment={"QD_DATA": str(tmp_path)}
    )
    assert result.returncode == 1
    assert result.stderr.startswith("qd: ") and result.stderr.count("\n") == 1
    assert "does not run on Windows" in result.stderr and "--url" in result.stderr


def test_client_without_the_server_waits_for_one_that_is_starting(tmp_path: Path) -> None:
    """Another installation may be starting a server on the same data directory: it holds the lock, and is not ready."""
    data = tmp_path / "data"
    data.mkdir()
    with (data / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run_python(
            "from quarterdeck.client import autostart\nautostart.READY_TIMEOUT_SECONDS = 0.1\n",
            _RUN_QD,
            blocked=SERVER_LIBRARIES,
            arguments=["session", "list"],
            environment={"QD_DATA": str(data)},
        )
    assert "is running but has accepted no connection" in result.stderr


def test_embedded_server_names_the_package_to_install() -> None:
    result = run_python("import quarterdeck; quarterdeck.embedded()", blocked=SERVER_LIBRARIES)
    assert "pip install 'quarterdeck[server]'" in result.stderr


def test_extra_server_installs_the_libraries_that_the_client_looks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[\[>=<]", requirement)[0] for requirement in project["optional-dependencies"]["server"]}
    modules = {"PyJWT": "jwt", "prometheus-client": "prometheus_client"}
    assert {modules.get(name, name) for name in names} == {*SERVER_LIBRARIES}
    assert {re.split(r"[>=<]", requirement)[0] for requirement in project["dependencies"]} == {"msgspec", "click"}
