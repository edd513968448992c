"""What both engines promise whoever writes operations, one suite for both."""

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


def make_table(url: str) -> None:
    DirectDatabase(url).execute(TABLE)
    if not sqlite_path(url):
        DirectDatabase(url).execute(f"grant select, insert, update, delete on things to {SERVER}")


@pytest.fixture
async def store(engine_url: str) -> AsyncIterator[Store]:
    make_table(engine_url)
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


async def test_what_is_written_is_there_when_the_transaction_returns(store: Store) -> None:
    await write(store, put(("a", 1, "x"), ("b", 2, None)))
    assert await stored(store) == [("a", 1, "x"), ("b", 2, None)]


async def test_work_that_raises_leaves_nothing_behind(store: Store) -> None:
    async def work(tx: StoreTransaction) -> None:
        tx.write(put(("a", 1, "x")))
        await tx.read(Q.things_all())
        tx.write(put(("b", 1, "x")))
        raise LookupError("changed my mind")

    with pytest.raises(LookupError, match="changed my mind"):
        await store.transact(work)
    assert await stored(store) == []
    await write(store, put(("c", 1, "x")))


async def test_a_read_sees_what_the_same_transaction_has_written_before_it(store: Store) -> None:
    async def work(tx: StoreTransaction) -> list[list[Row]]:
        tx.write(put(("a", 1, "x")))
        first = await tx.read(Q.things_all(), Q.thing_add(id="a", n=4), Q.things_all())
        tx.write(Q.thing_add(id="a", n=1))
        return first + await tx.read(Q.things_all())

    assert await store.transact(work) == [[("a", 1, "x")], [(5,)], [("a", 5, "x")], [("a", 6, "x")]]
    assert await stored(store) == [("a", 6, "x")]


async def test_each_statement_of_a_read_has_its_own_rows_also_when_it_has_none(store: Store) -> None:
    await write(store, put(("a", 1, "x"), ("b", 2, "y")))
    answers = await store.read(
        lambda tx: tx.read(
            Q.things_of(batch=[("b",)]), Q.things_of(batch=[]), Q.things_of(batch=[("a",), ("z",), ("b",)])
        )
    )
    assert answers == [[("b", 2, "y")], [], [("a", 1, "x"), ("b", 2, "y")]]


async def test_a_transaction_that_does_nothing_is_fine(store: Store) -> None:
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


async def test_many_transactions_at_once_lose_no_update(store: Store) -> None:
    await write(store, put(("a", 0, "x")))
    await asyncio.gather(*(write(store, Q.thing_add(id="a", n=1)) for _ in range(40)))
    assert await stored(store) == [("a", 40, "x")]


async def test_a_caller_who_goes_away_harms_nobody_after_them(store: Store) -> None:
    for turns in range(6):
        # Cancelled at whatever point so many turns of the loop have brought it to.
        leaving = asyncio.ensure_future(write(store, put((f"t{turns}", 1, "x"))))
        for _ in range(turns):
            await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])
        await write(store, put((f"after{turns}", 1, "x")))
    left = [row[0] for row in await stored(store)]
    assert [own for own in left if str(own).startswith("after")] == [f"after{turns}" for turns in range(6)]


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


async def test_text_comes_back_as_it_went_in_by_batch_and_by_name(store: Store) -> None:
    for number, text in enumerate(TEXTS):
        batch, name, mark = f"{number:03}a", f"{number:03}b", f"{number:03}c"
        await write(store, put((batch, 1, text), (name, 1, None), (mark, 1, None)))
        await write(store, Q.thing_note(id=name, note=text), Q.things_mark(batch=[(mark,)], note=text))
    assert [row[2] for row in await stored(store)] == [text for text in TEXTS for _ in range(3)]


async def test_integers_come_back_exactly(store: Store) -> None:
    for number in (0, 1, 2**31, 2**53 + 1, 2**63 - 1):
        await write(store, put(("a", number, None), ("b", 0, None)))
        await write(store, Q.thing_add(id="b", n=number))
        assert [row[1] for row in await stored(store)] == [number, number]
        await write(store, Q.things_drop(batch=[("a",), ("b",)]))


async def test_null_is_null_wherever_it_stands(store: Store) -> None:
    await write(store, put(("a", None, None), ("b", 1, "x")), Q.thing_note(id="b", note=None))
    assert await stored(store) == [("a", None, None), ("b", 1, None)]


async def test_a_nul_is_refused_as_content_or_kept_whole_and_never_cut_off(store: Store) -> None:
    await write(store, put(("a", 1, None)))
    for statement in (put(("b", 1, "x\0y")), Q.thing_note(id="a", note="x\0y")):
        try:
            await write(store, statement)
        except ContentError as refused:
            assert refused.code.startswith("22")
    assert {row[2] for row in await stored(store)} <= {None, "x\0y"}


async def test_one_parameter_may_stand_in_several_places(store: Store) -> None:
    [rows] = await store.read(lambda tx: tx.read(Q.echo(same="x", other="y")))
    assert rows == [("x", "x", "y")]


async def test_an_empty_batch_writes_nothing(store: Store) -> None:
    await write(store, put(), Q.things_drop(batch=[]), Q.things_mark(batch=[], note="x"))
    assert await stored(store) == []


async def test_a_large_batch_is_one_statement(store: Store) -> None:
    rows: list[tuple[object, ...]] = [(f"{i:05}", i, "x") for i in range(5_000)]
    await write(store, Q.things_put(batch=rows))
    assert await stored(store) == rows
    await write(store, Q.things_drop(batch=[(own,) for own, _, _ in rows[1:]]))
    assert await stored(store) == rows[:1]


async def test_the_clock_is_read_anew_by_each_statement(store: Store) -> None:
    async def clock(tx: StoreTransaction) -> list[int]:
        return [int(str((await tx.read(Q.clock()))[0][0][0])) for _ in range(3)]

    times = await store.transact(clock)
    assert times == sorted(times)
    assert abs(times[0] - (await store.transact(clock))[0]) < 60_000


# -- failures


@pytest.mark.parametrize("at_commit", [True, False], ids=["with COMMIT", "with a read"])
async def test_what_a_constraint_refuses_is_content_and_nothing_of_it_stays(store: Store, at_commit: bool) -> None:
    await write(store, put(("a", 1, "x")))
    wrongs = {"duplicate": ("a", 1, "again"), "check": ("x", -1, "below nothing"), "null": (None, 1, "no id")}

    async def work(tx: StoreTransaction, wrong: tuple[object, ...]) -> None:
        tx.write(put(("b", 1, "x")))
        tx.write(put(wrong))
        if not at_commit:
            await tx.read(Q.things_all())

    for wrong in wrongs.values():
        with pytest.raises(ContentError) as refused:
            await store.transact(partial(work, wrong=wrong))
        assert refused.value.code.startswith(("23", "SQLITE_CONSTRAINT"))
        assert await stored(store) == [("a", 1, "x")]


async def test_after_a_failure_every_statement_works_as_before_it(engine_url: str) -> None:
    # One connection, and statements it meets for the first time in the very transaction that fails.
    make_table(engine_url)
    store = await open_store(engine_url, RuntimeOptions(pool_max=1))
    try:
        for number in range(3):
            with pytest.raises(ContentError):
                await write(store, Q.thing_add(id="a", n=1), put((None, 1, "x")), Q.thing_note(id="a", note="x"))
            await write(store, put((f"n{number}", 1, "x")), Q.thing_add(id="a", n=1), Q.thing_note(id="a", note="y"))
        assert len(await stored(store)) == 3
    finally:
        await store.close()


async def test_a_statement_that_is_wrong_is_neither_content_nor_transient(store: Store) -> None:
    nowhere = Statements(parse("-- name: lost\nselect 1 from nowhere_at_all;"))
    for _ in range(2):
        with pytest.raises(StoreError) as failed:
            await store.read(lambda tx: tx.read(nowhere.lost()))
        assert type(failed.value) is StoreError
    assert await stored(store) == []


async def test_a_value_that_is_no_text_at_all_fails_alone_and_harms_nobody_after_it(store: Store) -> None:
    with pytest.raises(UnicodeEncodeError):
        await write(store, Q.thing_note(id="a", note="\ud800"))
    await write(store, put(("a", 1, "x")))
    assert await stored(store) == [("a", 1, "x")]


async def test_a_store_that_is_there_answers_a_ping(store: Store) -> None:
    await store.ping()
    await store.wait_until_ended(7)
