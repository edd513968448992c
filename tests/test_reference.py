"""The generated pages of metrics and settings: up to date, and generated from complete lists."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from quarterdeck.core.metric_table import METRICS
from quarterdeck.domain.zones.model import Limits
from quarterdeck.settings import SECTIONS
from tests.support.source import ROOT, parse_modules
from tools import generate_reference as generator

METRIC_TABLE = "src/quarterdeck/core/metric_table.py"


def test_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["generate_reference.py", "--check"])
    assert generator.main() == 0


def test_check_finds_an_outdated_page_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "DOCS_DIR", tmp_path)
    monkeypatch.setattr("sys.argv", ["generate_reference.py", "--check"])
    assert generator.main() == 1
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", ["generate_reference.py"])
    assert generator.main() == 0
    assert (tmp_path / "settings.md").read_text() == (ROOT / "docs" / "settings.md").read_text()


@pytest.mark.parametrize(
    "row",
    [
        "| `QD_PORT` | `--port`, `PORT` | integer, 0 to 65,535 | `4000` | port to listen on; 0 picks a free port |",
        "| `QD_FLEET_EXIT_SECONDS` |  | number, more than 0, up to 45 | `15` | how long a member's pane may take",
        "| `QD_SWEEPS` |  | `true` or `false` | `true` | whether this server runs the sweeps",
        "| `QD_STREAMS_HMAC_KEY` | `STREAMS_HMAC_KEY` | text of at least 16 characters | none | key that signs",
        "| `QD_MAX_TREE_SPAWNS` |  | integer, 0 to 10,000,000 | `500` | maximum sessions ever admitted in the tree |",
        "| `launchers` |  | tables in `quarterdeck.toml` | none | launchers of agents, by name",
    ],
)
def test_settings_page_has_names_bounds_default_and_purpose(row: str) -> None:
    assert f"\n{row}" in generator.build_settings_page()


def test_metrics_page_has_type_buckets_labels_and_help() -> None:
    row = (
        "| `quarterdeck_lane_batch_size` | histogram: 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 | `lane`: the lane "
        "| Commands per batch |\n"
    )
    assert row in generator.build_metrics_page()


def test_every_metric_is_declared_once_and_only_in_the_table() -> None:
    names = {metric.name for metric in METRICS}
    assert len(names) == len(METRICS)
    stems = names | {name.removesuffix("_total") for name in names}
    found = [
        f"{module.path}:{node.lineno}"
        for module in parse_modules("src")
        for node in module.walk()
        if isinstance(node, ast.Constant) and node.value in stems and module.path != METRIC_TABLE
    ]
    assert not found, f"declare metrics in {METRIC_TABLE}: {found}"


def test_every_settings_struct_is_listed() -> None:
    declared = {
        node.name
        for module in parse_modules("src")
        for node in module.walk()
        if isinstance(node, ast.ClassDef) and node.name.endswith("Settings") and not node.name.startswith("_")
        if any(ast.unparse(base) == "msgspec.Struct" for base in node.bases)
    }
    assert declared == {section.__name__ for section in SECTIONS if section is not Limits}
