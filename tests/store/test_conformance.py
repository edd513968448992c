"""What both database engines promise to operations: one suite for both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from quarterdeck.store.interface import ContentError, Row, Store, StoreError, StoreTransaction
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.postgres_roles import SERVER
from quarterdeck.store.sql import BoundStatement, Statements, parse
from tests.support.runtime import DirectDatabase, RuntimeOptions, open_store

Q = Statements(
    parse("""
-- columns: id, number, note

-- name: things_put
insert into things (id, number, note)
select b.id, b.number, b.note from rows(:batch as b, id text, number bigint, note text);

-- name: things_all
select columns(t) from things t order by t.id;

-- name: things_of
select columns(t) from rows(:batch as b, id text) join things t on t.id = b.id order by t.id;

-- name: thing_add
update things set number = number + :n where id = :id returning number;

-- name: thing_note
update things set note = :note where id = :id;

-- name: things_drop
delete from things where id in (select b.id from rows(:batch as b, id text));

-- name: things_mark
update things set note = :note from rows(:batch as b, own text) where id = b.own;

-- name: clock
select now_ms();

-- name: echo
select :same, :same, :other;
""")
)
TABLE = "create table things (id text not null primary key, number bigint check (number >= 0), note text)"


def create_table(url: str) -> None:
    DirectDatabase(url).execute(TABLE)
    if not sqlite_path(url):
        DirectDatabase(url).execute(f"grant select, insert, update, delete on things to {SERVER}")


@pytest.fixture
async def store(engine_url: str) -> AsyncIterator[Store]:
    create_table(engine_url)
    opened = await open_store(engine_url)
    yield opened
    await opened.close()


def put(*rows: tuple[object, ...]) -> BoundStatement:
    return Q.things_put(batch=list(rows))


async def write(store: Store, *statements: BoundStatement) -> None:
    async def work(tx: StoreTransaction) -> None:
        for statement in statements:
            tx.write(statement)

    await store.transact(work)


async def stored(store: Store) -> list[Row]:
    [rows] = await store.read(lambda tx: tx.read(Q.things_all()))
    return rows


# -- transactions


async def test_writes_are_committed_when_the_transaction_returns(store: Store) -> None:
    await write(store, put(("a", 1, "x"), ("b", 2, None)))
    assert await stored(store) == [("a", 1, "x"), ("b", 2, None)]


async def test_transaction_that_raises_is_rolled_back(store: Store) -> None:
    async def work(tx: StoreTransaction) -> None:
        tx.write(put(("a", 1, "x")))
        await tx.read(Q.things_all())
        tx.write(put(("b", 1, "x")))
        raise LookupError("operation failed")

    with pytest.raises(LookupError, match="operation failed"):
        await store.transact(work)
    assert await stored(store) == []
    await write(store, put(("c", 1, "x")))


async def test_read_sees_earlier_writes_of_the_same_transaction(store: Store) -> None:
    async def work(tx: StoreTransaction) -> list[list[Row]]:
        tx.write(put(("a", 1, "x")))
        first = await tx.read(Q.things_all(), Q.thing_add(id="a", n=4), Q.things_all())
        tx.write(Q.thing_add(id="a", n=1))
        return first + await tx.read(Q.things_all())

    assert await store.transact(work) == [[("a", 1, "x")], [(5,)], [("a", 5, "x")], [("a", 6, "x")]]
    assert await stored(store) == [("a", 6, "x")]


async def test_each_statement_of_a_read_has_its_own_result_even_if_empty(store: Store) -> None:
    await write(store, put(("a", 1, "x"), ("b", 2, "y")))
    results = await store.read(
        lambda tx: tx.read(
            Q.things_of(batch=[("b",)]), Q.things_of(batch=[]), Q.things_of(batch=[("a",), ("z",), ("b",)])
        )
    )
    assert results == [[("b", 2, "y")], [], [("a", 1, "x"), ("b", 2, "y")]]


async def test_empty_transaction_succeeds(store: Store) -> None:
    await write(store)
    assert await store.transact(lambda tx: tx.read()) == []


async def test_readers_see_the_last_commit_while_a_transaction_is_open(store: Store) -> None:
    await write(store, put(("a", 1, "x")))
    seen = []

    async def work(tx: StoreTransaction) -> None:
        await tx.read(Q.thing_add(id="a", n=1))
        seen.append(await stored(store))

    await store.transact(work)
    assert seen == [[("a", 1, "x")]]
    assert await stored(store) == [("a", 2, "x")]


async def test_concurrent_transactions_lose_no_update(store: Store) -> None:
    await write(store, put(("a", 0, "x")))
    await asyncio.gather(*(write(store, Q.thing_add(id="a", n=1)) for _ in range(40)))
    assert await stored(store) == [("a", 40, "x")]


async def test_cancelled_transaction_does_not_affect_later_ones(store: Store) -> None:
    for count in range(6):
        # Cancelled after a different number of event loop iterations each time.
        cancelled = asyncio.ensure_future(write(store, put((f"t{count}", 1, "x"))))
        for _ in range(count):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await write(store, put((f"after{count}", 1, "x")))
    ids = [row[0] for row in await stored(store)]
    assert [row_id for row_id in ids if str(row_id).startswith("after")] == [f"after{count}" for count in range(6)]


# -- values

TEXTS = [
    "",
    " ",
    "plain",
    "it's",
    '"quoted"',
    "back\\slash",
    "ünï",
    "🜁",
    "\u2028",
    "\x7f",
    "\t\n\r",
    "null",
    "[1]",
    "{}",
]
TEXTS += [":name", "$1", "?1", "%s", "--", ";", "a" * 100_000]


async def test_text_is_stored_unchanged_by_batch_and_by_name(store: Store) -> None:
    for number, text in enumerate(TEXTS):
        batch_id, name_id, mark_id = f"{number:03}a", f"{number:03}b", f"{number:03}c"
        await write(store, put((batch_id, 1, text), (name_id, 1, None), (mark_id, 1, None)))
        await write(store, Q.thing_note(id=name_id, note=text), Q.things_mark(batch=[(mark_id,)], note=text))
    assert [row[2] for row in await stored(store)] == [text for text in TEXTS for _ in range(3)]


async def test_integers_are_stored_exactly(store: Store) -> None:
    for number in (0, 1, 2**31, 2**53 + 1, 2**63 - 1):
        await write(store, put(("a", number, None), ("b", 0, None)))
        await write(store, Q.thing_add(id="b", n=number))
        assert [row[1] for row in await stored(store)] == [number, number]
        await write(store, Q.things_drop(batch=[("a",), ("b",)]))


async def test_null_is_stored_as_null(store: Store) -> None:
    await write(store, put(("a", None, None), ("b", 1, "x")), Q.thing_note(id="b", note=None))
    assert await stored(store) == [("a", None, None), ("b", 1, None)]


async def test_text_with_nul_is_refused_or_stored_but_never_truncated(store: Store) -> None:
    await write(store, put(("a", 1, None)))
    for statement in (put(("b", 1, "x\0y")), Q.thing_note(id="a", note="x\0y")):
        try:
            await write(store, statement)
        except ContentError as refused:
            assert refused.code.startswith("22")
    assert {row[2] for row in await stored(store)} <= {None, "x\0y"}


async def test_parameter_may_be_used_more_than_once(store: Store) -> None:
    [rows] = await store.read(lambda tx: tx.read(Q.echo(same="x", other="y")))
    assert rows == [("x", "x", "y")]


async def test_empty_batch_writes_nothing(store: Store) -> None:
    await write(store, put(), Q.things_drop(batch=[]), Q.things_mark(batch=[], note="x"))
    assert await stored(store) == []


async def test_batch_of_5000_rows_is_one_statement(store: Store) -> None:
    rows = [(f"{i:05}", i, "x") for i in range(5_000)]
    await write(store, Q.things_put(batch=rows))
    assert await stored(store) == rows
    await write(store, Q.things_drop(batch=[(row_id,) for row_id, _, _ in rows[1:]]))
    assert await stored(store) == rows[:1]


async def test_each_statement_reads_the_clock(store: Store) -> None:
    async def read_clock(tx: StoreTransaction) -> list[int]:
        return [int(str((await tx.read(Q.clock()))[0][0][0])) for _ in range(3)]

    times = await store.transact(read_clock)
    assert times == sorted(times)
    assert abs(times[0] - (await store.transact(read_clock))[0]) < 60_000


# -- failures


@pytest.mark.parametrize("at_commit", [True, False], ids=["with COMMIT", "with a read"])
async def test_constraint_violation_is_a_content_error_and_rolls_back(store: Store, at_commit: bool) -> None:
    await write(store, put(("a", 1, "x")))
    invalid_rows = {"duplicate": ("a", 1, "duplicate"), "check": ("x", -1, "negative"), "null": (None, 1, "no id")}

    async def work(tx: StoreTransaction, invalid_row: tuple[object, ...]) -> None:
        tx.write(put(("b", 1, "x")))
        tx.write(put(invalid_row))
        if not at_commit:
            await tx.read(Q.things_all())

    for invalid_row in invalid_rows.values():
        with pytest.raises(ContentError) as refused:
            await store.transact(partial(work, invalid_row=invalid_row))
        assert refused.value.code.startswith(("23", "SQLITE_CONSTRAINT"))
        assert await stored(store) == [("a", 1, "x")]


async def test_statements_work_after_a_failed_transaction(engine_url: str) -> None:
    # One connection, and statements that it first prepares in the transaction that fails.
    create_table(engine_url)
    store = await open_store(engine_url, RuntimeOptions(pool_max=1))
    try:
        for number in range(3):
            with pytest.raises(ContentError):
                await write(store, Q.thing_add(id="a", n=1), put((None, 1, "x")), Q.thing_note(id="a", note="x"))
            await write(store, put((f"n{number}", 1, "x")), Q.thing_add(id="a", n=1), Q.thing_note(id="a", note="y"))
        assert len(await stored(store)) == 3
    finally:
        await store.close()


async def test_invalid_statement_is_neither_a_content_nor_a_transient_error(store: Store) -> None:
    invalid = Statements(parse("-- name: unknown_table\nselect 1 from missing_table;"))
    for _ in range(2):
        with pytest.raises(StoreError) as failed:
            await store.read(lambda tx: tx.read(invalid.unknown_table()))
        assert type(failed.value) is StoreError
    assert await stored(store) == []


async def test_unencodable_text_fails_without_affecting_later_transactions(store: Store) -> None:
    with pytest.raises(UnicodeEncodeError):
        await write(store, Q.thing_note(id="a", note="\ud800"))
    await write(store, put(("a", 1, "x")))
    assert await stored(store) == [("a", 1, "x")]


async def test_ping_of_a_reachable_store_succeeds(store: Store) -> None:
    await store.ping()
    await store.wait_until_ended(7)
