"""A store that counts statements, rows sent and rows returned. The counts do not depend on the clock or on the load of
the machine."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import psycopg

from quarterdeck.store.interface import Row, Store, StoreTransaction, StoreWork, T
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.sql import BoundStatement
from tests.support.query_plans import Planner


@dataclass
class StatementCounts:
    """The counts of a period."""

    statements_sent: Counter[str] = field(default_factory=Counter)
    """By statement name."""
    rows_sent: int = 0
    """Rows in the batch parameters."""
    rows_returned: int = 0
    last_statements: dict[str, BoundStatement] = field(default_factory=dict)

    def record(self, bound: BoundStatement) -> None:
        name = bound.statement.name
        self.statements_sent[name] += 1
        self.last_statements[name] = bound
        batch = bound.params.get("batch")
        self.rows_sent += len(batch) if isinstance(batch, Sequence) and not isinstance(batch, str) else 0


class CountingStore:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.kind: Literal["sqlite", "postgresql"] = store.kind
        self._counts = StatementCounts()

    def take_counts(self) -> StatementCounts:
        """Return the counts since the last call."""
        counts, self._counts = self._counts, StatementCounts()
        return counts

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        return await self._store.transact(lambda tx: work(_CountingTransaction(tx, self._counts)), key, zones)

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        return await self._store.read(lambda tx: work(_CountingTransaction(tx, self._counts)), zones)

    async def wait_until_ended(self, key: int) -> None:
        await self._store.wait_until_ended(key)

    async def ping(self) -> None:
        await self._store.ping()

    async def close(self) -> None:
        await self._store.close()


class _CountingTransaction:
    def __init__(self, tx: StoreTransaction, counts: StatementCounts) -> None:
        self._tx = tx
        self._counts = counts

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        for bound in statements:
            self._counts.record(bound)
        responses = await self._tx.read(*statements)
        self._counts.rows_returned += sum(map(len, responses))
        return responses

    def write(self, statement: BoundStatement) -> None:
        self._counts.record(statement)
        self._tx.write(statement)


# -- the cost of each statement


def pages_touched(url: str, counts: StatementCounts) -> dict[str, int]:
    """By statement: the pages that PostgreSQL touches when it runs again with its last parameters. Statements that
    insert are left out: their rows exist already, so they would fail."""
    with psycopg.connect(url, autocommit=True) as connection:
        # Autovacuum does this after a while. Until then a search for ready tasks also reads the index entries of tasks
        # that have started since: about two hundred of them are one page.
        connection.execute("vacuum agent_tasks, task_dependencies")
    planner = Planner(url, "force_generic_plan")
    statements = {
        name: bound for name, bound in counts.last_statements.items() if "insert into" not in bound.statement.postgresql
    }
    try:
        return {name: planner.run(bound).pages for name, bound in statements.items()}
    finally:
        planner.close()


def sqlite_steps(url: str, counts: StatementCounts) -> dict[str, int]:
    """By statement: the virtual machine steps that SQLite makes when it runs again with its last parameters."""
    path = sqlite_path(url)
    assert path is not None
    step_counts: Counter[str] = Counter()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.create_function("now_ms", 0, lambda: 0)
        for name, bound in counts.last_statements.items():
            connection.set_progress_handler(partial(step_counts.update, [name]), 1)
            connection.execute(bound.statement.sqlite, bound.named_params()).fetchall()
    return dict(step_counts)


def table_scans(url: str, counts: StatementCounts) -> dict[str, list[str]]:
    """By statement: the parts of its plan in which SQLite scans a table instead of searching an index."""
    path = sqlite_path(url)
    assert path is not None
    scans_by_name: dict[str, list[str]] = {}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.create_function("now_ms", 0, lambda: 0)
        for name, bound in counts.last_statements.items():
            plan_rows = connection.execute(f"explain query plan {bound.statement.sqlite}", bound.named_params())
            all_scans = [str(step[3]) for step in plan_rows if str(step[3]).startswith("SCAN")]
            # Scans of a batch parameter or of a constant row do not read a table.
            table_scans_found = [
                scan for scan in all_scans if "VIRTUAL TABLE" not in scan and "CONSTANT ROW" not in scan
            ]
            if table_scans_found:
                scans_by_name[name] = table_scans_found
    return scans_by_name
