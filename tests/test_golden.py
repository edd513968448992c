"""The public interface as files in `tests/golden/`: a change that should not alter it must not alter them.

`make golden` writes the files again. Read the diff before you commit it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from msgspec.structs import fields

from quarterdeck.app import App, build
from quarterdeck.cli import click_parser
from quarterdeck.cli.registry import MODULES, load_commands
from quarterdeck.core.metric_table import LOG_LINES_LOST, METRICS
from quarterdeck.http.metrics import Metrics
from quarterdeck.server_process import open_issuer
from quarterdeck.settings import SECTIONS, SHARED_NAMES, load_settings
from quarterdeck.store.sql import Statement
from tests.support.server import ServerProcess
from tests.support.source import ROOT
from tests.support.statement_workload import record_workload

GOLDEN = ROOT / "tests" / "golden"
WRITE = bool(os.environ.get("QD_WRITE_GOLDEN"))
COMMANDS = [command for word in MODULES for command in load_commands(word)]


@pytest.fixture
async def app(sqlite_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[App]:
    """A server with every component, Redis included. Nothing of it is started."""
    flags = {"database_url": sqlite_url, "redis_url": redis_url, "streams_hmac_key": "k" * 32}
    settings = load_settings(tmp_path, flags, {}, use_shared_variables=False)
    built = await build(settings, open_issuer(settings), None)
    yield built
    await built.stop(1)


def check(name: str, text: str) -> None:
    file = GOLDEN / name
    if WRITE:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert file.exists(), f"run `make golden`: {file.name} is missing"
    assert file.read_text(encoding="utf-8") == text, f"run `make golden` and read the diff of {file.name}"


def lines(found: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in found)


async def test_openapi_document(sqlite_server: ServerProcess) -> None:
    async with sqlite_server.client() as client:
        document = (await client.get("/openapi.json")).json()
    document["info"]["version"] = "0.0.0"
    check("openapi.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def test_help_of_every_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    groups = sorted({command.words[0] for command in COMMANDS if len(command.words) > 1})
    found = []
    for words in [(), *((group,) for group in groups), *(command.words for command in COMMANDS)]:
        click_parser.parse([*words, "--help"])
        found.append(f"$ qd {' '.join([*words, '--help'])}\n{capsys.readouterr().out}")
    check("help.txt", "\n".join(found))


def test_lanes(app: App) -> None:
    check("lanes.txt", lines(sorted(lane.name for lane in app.runtime.lanes.lanes)))


def test_sweeps(app: App) -> None:
    found = sorted(f"{sweep.name} every {sweep.every_ms} ms, batch {sweep.batch}" for sweep in app.sweeps.sweeps)
    check("sweeps.txt", lines(found))


def test_leases(app: App) -> None:
    check("leases.txt", lines(sorted(lease.name for lease in app.leases)))


def metric_headers(app: App) -> list[str]:
    metrics = app.runtime.metrics
    assert isinstance(metrics, Metrics)
    return [line for line in metrics.render().decode().splitlines() if line.startswith("# ")]


def test_metrics(app: App) -> None:
    check("metrics.txt", lines(metric_headers(app)))


def test_every_declared_metric_is_exported_and_no_other(app: App) -> None:
    exported = {line.split()[2] for line in metric_headers(app)}
    # This server has no request log.
    assert exported == {metric.name for metric in METRICS if metric is not LOG_LINES_LOST}


def test_settings() -> None:
    found = [
        f"{section.__name__}.{field.name} = {field.default!r}"
        + (f" ({SHARED_NAMES[field.name]})" if field.name in SHARED_NAMES else "")
        for section in SECTIONS
        for field in fields(section)
    ]
    check("settings.txt", lines(sorted(found)))


async def test_statements_of_every_operation(postgres_url: str, tmp_path: Path) -> None:
    found = []
    async with record_workload(postgres_url, tmp_path) as day:
        for part, transactions in day.transactions.items():
            distinct = dict.fromkeys(tuple(map(numbered, sent)) for sent in transactions if sent)
            for sent in sorted(distinct):
                found += [f"-- {part}", *(f"  {statement}" for statement in sent)]
    check("statements.txt", lines(found))


def numbered(statement: Statement) -> str:
    """The name, and a digest of the SQL: a renamed statement keeps its digest."""
    return f"{statement.name} {hashlib.sha256(statement.postgresql.encode()).hexdigest()[:8]}"
