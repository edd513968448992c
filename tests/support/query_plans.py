"""The plan of a statement on PostgreSQL and the pages it touches. Pages do not depend on the clock."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql

from quarterdeck.store.interface import Row, Store, StoreTransaction, StoreWork, T
from quarterdeck.store.postgres import connection_options
from quarterdeck.store.postgres_roles import SERVER, Role
from quarterdeck.store.sql import BoundStatement, Statement
from tests.support.builders import ZONE

ENDING_ZONE = "ending"
ZONES = (ZONE, ENDING_ZONE)
"""The zones of the recorded statements."""


class RecordingStore:
    """A store that records every statement."""

    kind: Literal["sqlite", "postgresql"] = "postgresql"

    def __init__(self, store: Store) -> None:
        self._store = store
        self.statements: dict[str, BoundStatement] = {}
        self.transactions: list[list[Statement]] = []
        """The statements of each transaction, in the order of sending."""

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        return await self._store.transact(lambda tx: work(self._wrap(tx)), key, zones)

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        return await self._store.read(lambda tx: work(self._wrap(tx)), zones)

    def _wrap(self, tx: StoreTransaction) -> _RecordingTransaction:
        self.transactions.append([])
        return _RecordingTransaction(tx, self.statements, self.transactions[-1])

    async def wait_until_ended(self, key: int) -> None:
        await self._store.wait_until_ended(key)

    async def ping(self) -> None:
        await self._store.ping()

    async def close(self) -> None:
        await self._store.close()


class _RecordingTransaction:
    def __init__(self, tx: StoreTransaction, statements: dict[str, BoundStatement], sent: list[Statement]) -> None:
        self._tx = tx
        self._statements = statements
        self._sent = sent

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        self._statements |= {bound.statement.name: bound for bound in statements}
        self._sent += [bound.statement for bound in statements]
        return await self._tx.read(*statements)

    def write(self, statement: BoundStatement) -> None:
        self._statements[statement.statement.name] = statement
        self._sent.append(statement.statement)
        self._tx.write(statement)


def read_statement(statement: BoundStatement) -> StoreWork[list[list[Row]]]:
    """Work of a transaction that runs only this statement."""
    return lambda tx: tx.read(statement)


@dataclass(frozen=True)
class Plan:
    nodes: tuple[str, ...]
    """Every node as "Index Scan on agent_sessions", outermost first."""
    pages: int

    def scans(self, kind: str) -> list[str]:
        return [node for node in self.nodes if node.startswith(kind)]


class Planner:
    """A connection with the options and the role of a lane. The mode decides whether a statement keeps its first plan
    or is planned at each execution."""

    def __init__(self, url: str, mode: Literal["force_generic_plan", "force_custom_plan"], role: Role = SERVER) -> None:
        self._connection = psycopg.connect(url, options=connection_options(url, role))
        self._connection.execute("select set_config('quarterdeck.zones', %s, false)", [",".join(ZONES)])
        self._connection.execute(sql.SQL("set plan_cache_mode = {}").format(sql.Identifier(mode)))
        self._connection.commit()
        self._prepared: set[str] = set()

    def close(self) -> None:
        self._connection.close()

    def run(self, bound: BoundStatement, first: BoundStatement | None = None) -> Plan:
        """Run a statement, after `first` if it is given. Return its plan and roll back."""
        execute = self._execute(bound)
        if first:
            self._connection.execute(self._execute(first))
        explain = sql.SQL("explain (analyze, buffers, timing off, format json) ")
        found = self._connection.execute(explain + execute).fetchone()
        self._connection.rollback()
        assert found is not None
        [plan_document] = found[0]
        top = plan_document["Plan"]
        pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        return Plan(tuple(_plan_nodes(top)), pages)

    def _execute(self, bound: BoundStatement) -> sql.Composed:
        name, text = bound.statement.name, bound.statement.postgresql
        if name not in self._prepared:
            self._connection.execute(b"prepare plan_%b as %b" % (name.encode(), text.encode()))
            self._connection.commit()
            self._prepared.add(name)
        values = sql.SQL(", ").join(sql.Literal(value) for value in bound.positional_params())
        form = sql.SQL("execute {}({})") if bound.statement.param_order else sql.SQL("execute {}{}")
        return form.format(sql.Identifier(f"plan_{name}"), values)


def _plan_nodes(plan: dict[str, Any]) -> Iterator[str]:
    relation = f" on {plan['Relation Name']}" if "Relation Name" in plan else ""
    yield f"{plan['Node Type']}{relation}"
    for inner in plan.get("Plans", []):
        yield from _plan_nodes(inner)
