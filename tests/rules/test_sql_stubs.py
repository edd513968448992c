"""The generated type stubs of SQL statements: up to date, and with the names and types of all parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import generate_sql_stubs as generator

PACKAGE = {
    "queries.py": 'Q = load(__package__)\nLISTS = load(__package__, "lists.sql")\n',
    "queries.sql": """-- phrase live(a): a.ended_at > :now

-- name: items_get
-- Batched.
select i.id from rows(:batch as b, zone_id text, number bigint) join items i on i.id = b.number and live(i);

-- name: items_count
select count(*) from items;
""",
    "lists.sql": """-- name: items_page
select i.id from items i where i.zone_id = :zone_id and live(i) limit :limit;
""",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in PACKAGE.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(generator, "SOURCE_DIR", tmp_path)
    return tmp_path


def test_stub_has_every_statement_with_its_parameters_also_those_of_phrases(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["generate_sql_stubs.py"])
    assert generator.main() == 0
    stub = (package / "queries.pyi").read_text(encoding="utf-8")
    get, count, page = [line.strip() for line in stub.splitlines() if " items_" in line]
    assert get == "def items_get(self, *, batch: Sequence[tuple[Text, Int]], now: Scalar) -> BoundStatement: ..."
    assert count == "def items_count(self) -> BoundStatement: ..."
    assert page == "def items_page(self, *, zone_id: Scalar, now: Scalar, limit: Scalar) -> BoundStatement: ..."
    assert "Q: _Q" in stub
    assert "LISTS: _LISTS" in stub


def test_check_finds_an_outdated_stub_and_writes_nothing(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["generate_sql_stubs.py", "--check"])
    assert generator.main() == 1
    assert not (package / "queries.pyi").exists()
