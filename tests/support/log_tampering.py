"""Tampering with the event log: changes by an attacker who can write the database but has no signing key.

`LogRows` has the rows of the three tables. Each of `TAMPERINGS` changes them at random. `first_difference` compares
rows, without any hash, and returns the position that verification must name.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import psycopg

from quarterdeck.core.audit_seal import Row, row_position
from quarterdeck.core.audit_verify import VerificationInput
from quarterdeck.maintenance.queries import Q
from quarterdeck.maintenance.snapshot import first_row, iter_rows, open_snapshot
from quarterdeck.store.migrate import sqlite_path
from tests.support.runtime import SqlValue

EVENT_COLUMNS = ["pos", "id", "zone_id", "type", "subject", "actor", "from_state", "to_state", "data", "trace", "at"]
SEAL_COLUMNS = [
    "number",
    "first_pos",
    "last_pos",
    "floor",
    "digest",
    "leaves",
    "previous",
    "hash",
    "kid",
    "signature",
    "at",
]
NULLABLE_COLUMNS = ("from_state", "to_state", "trace")


@dataclass(frozen=True)
class LogRows:
    head: int
    floor: int
    seals: tuple[Row, ...]
    events: tuple[Row, ...]

    def verification_input(self, page: int = 7) -> VerificationInput:
        return VerificationInput(
            (self.head, self.floor), self.seals[-1] if self.seals else None, self.seals, self._pages(page)
        )

    def _pages(self, size: int) -> Iterator[Sequence[Row]]:
        remaining = iter(self.events)
        while page := tuple(itertools.islice(remaining, size)):
            yield page

    @property
    def sealed_pos(self) -> int:
        """The last sealed position."""
        return int(str(self.seals[-1][2])) if self.seals else 0

    @property
    def attested_floor(self) -> int:
        """The floor that the newest seal attests."""
        return int(str(self.seals[-1][3])) if self.seals else 0

    @property
    def anchor(self) -> str:
        return f"{self.seals[-1][0]}:{self.seals[-1][7]}"

    def with_events(self, events: Sequence[Row]) -> LogRows:
        return replace(self, events=tuple(sorted(events, key=row_position)))

    def choose_position(self, rng: Random) -> int:
        return row_position(rng.choice(self.events))


# -- read and write the rows ---------------------------------------------------------------------------------------


def read_log(url: str) -> LogRows:
    with open_snapshot(url) as snapshot:
        head = first_row(snapshot, Q.log_head_row())
        assert head is not None
        pos, floor = (int(str(value)) for value in head)
        return LogRows(
            pos, floor, tuple(iter_rows(snapshot, Q.seals_all())), tuple(iter_rows(snapshot, Q.events_all()))
        )


def write_log(url: str, log: LogRows) -> None:
    """Replace the stored rows with these."""
    with owner_transaction(url) as (run, run_many):
        for table, columns, content in (("events", EVENT_COLUMNS, log.events), ("seals", SEAL_COLUMNS, log.seals)):
            run(f"delete from {table}", ())
            values = ", ".join("?" for _ in columns)
            run_many(f"insert into {table} ({', '.join(columns)}) values ({values})", content)
        run("update log_head set pos = ?, floor = ?", (log.head, log.floor))


Execute = Callable[[str, Row], object]
ExecuteMany = Callable[[str, Sequence[Row]], object]


@contextlib.contextmanager
def owner_transaction(url: str) -> Iterator[tuple[Execute, ExecuteMany]]:
    """One transaction of the owner: functions that run a statement once, or for each of many rows, with `?`."""
    if path := sqlite_path(url):
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as sqlite, sqlite:
            yield sqlite.execute, sqlite.executemany
        return
    with psycopg.connect(url) as postgres, postgres.cursor() as cursor:
        yield (
            lambda statement, values: cursor.execute(statement.replace("?", "%s").encode(), values),
            lambda statement, values: cursor.executemany(statement.replace("?", "%s").encode(), values),
        )


# -- tampering -----------------------------------------------------------------------------------------------------


def edit_event(log: LogRows, rng: Random) -> LogRows:
    """Change one value of one event."""
    target, column = log.choose_position(rng), rng.choice(EVENT_COLUMNS[1:])
    index = EVENT_COLUMNS.index(column)

    def change_row(row: Row) -> Row:
        value = row[index]
        if column == "at":
            value = int(str(value)) + rng.choice((-1, 1, 86_400_000))
        elif column in NULLABLE_COLUMNS and value is not None and rng.random() < 0.5:
            value = None
        elif column == "data":
            value = rng.choice((str(value) + " ", str(value).replace(":", ": ", 1), "{}", "{ }"))
        else:
            value = f"{'' if value is None else value}{rng.choice('x 0é')}"
        return (*row[:index], value, *row[index + 1 :])

    return log.with_events([change_row(row) if row_position(row) == target else row for row in log.events])


def delete_events(log: LogRows, rng: Random) -> LogRows:
    """Delete one event, a run of events, or several scattered ones."""
    begin = log.choose_position(rng)
    match rng.randrange(3):
        case 0:
            removed = {begin}
        case 1:
            removed = set(range(begin, begin + rng.randint(2, 20)))
        case _:
            removed = {log.choose_position(rng) for _ in range(rng.randint(2, 10))}
    return log.with_events([row for row in log.events if row_position(row) not in removed])


def insert_event(log: LogRows, rng: Random) -> LogRows:
    """Insert a row after the end, before the beginning, or in the middle with the later rows shifted."""
    forged = rng.choice(log.events)[1:]
    match rng.randrange(3):
        case 0:
            return log.with_events([*log.events, (log.head + rng.randint(1, 50), *forged)])
        case 1:
            return log.with_events([*log.events, (-rng.randint(0, 50), *forged)])
        case _:
            at = log.choose_position(rng)
            moved = [(row_position(row) + (row_position(row) >= at), *row[1:]) for row in log.events]
            return log.with_events([*moved, (at, *forged)])


def reorder_events(log: LogRows, rng: Random) -> LogRows:
    """Swap two events, or reverse or shuffle a run of events."""
    contents = [row[1:] for row in log.events]
    first_index, last_index = sorted(rng.sample(range(len(contents)), 2))
    match rng.randrange(3):
        case 0:
            contents[first_index], contents[last_index] = contents[last_index], contents[first_index]
        case 1:
            contents[first_index : last_index + 1] = contents[first_index : last_index + 1][::-1]
        case _:
            run = contents[first_index : last_index + 1]
            rng.shuffle(run)
            contents[first_index : last_index + 1] = run
    positions = [row_position(row) for row in log.events]
    return log.with_events([(pos, *content) for pos, content in zip(positions, contents, strict=True)])


def truncate_log(log: LogRows, rng: Random) -> LogRows:
    """Cut off the beginning or the end, with or without its seals, and with or without a matching head."""
    cut = log.choose_position(rng)
    match rng.randrange(4):
        case 0:
            # More than retention may delete: exactly that much would be valid.
            cut = max(cut, log.floor + 1)
            return log.with_events([row for row in log.events if row_position(row) > cut])
        case 1:
            seals = [seal for seal in log.seals if int(str(seal[2])) > cut]
            short = replace(log, seals=tuple(seals))
            return short.with_events([row for row in log.events if row_position(row) > max(cut, log.floor)])
        case 2:
            return _cut_end(log, cut, rng, with_seals=False)
        case _:
            return _cut_end(log, cut, rng, with_seals=True)


def _cut_end(log: LogRows, cut: int, rng: Random, *, with_seals: bool) -> LogRows:
    last = cut - 1
    seals = log.seals
    if with_seals:
        seals = tuple(seal for seal in log.seals if int(str(seal[2])) <= last)
        last = int(str(seals[-1][2])) if seals and rng.random() < 0.5 else last
    head = rng.choice((log.head, last))
    short = replace(log, seals=seals, head=head, floor=int(str(seals[-1][3])) if seals else 0)
    return short.with_events([row for row in log.events if row_position(row) <= last])


TAMPERINGS: dict[str, Callable[[LogRows, Random], LogRows]] = {
    "edit": edit_event,
    "delete": delete_events,
    "insert": insert_event,
    "reorder": reorder_events,
    "truncate": truncate_log,
}


def first_difference(log: LogRows, altered: LogRows) -> set[int]:
    """The positions that verification may name: the first row that differs and, where seals were removed, the first row
    that no seal covers or whose deletion no seal attests. Empty if retention could have made the same change."""
    before, after = _rows_by_position(log), _rows_by_position(altered)
    lowest = min(before, default=1)
    differ = sorted(pos for pos in before.keys() | after.keys() if before.get(pos) != after.get(pos))
    # Retention deletes the lowest positions first, up to the floor. The same deletion by others cannot be detected.
    while differ and differ[0] == lowest <= log.floor and lowest not in after:
        lowest += 1
        differ.pop(0)
    positions = set(differ[:1])
    if altered.seals != log.seals:
        is_prefix = log.seals[: len(altered.seals)] == altered.seals
        positions.add(
            altered.sealed_pos + 1 if is_prefix and altered.attested_floor >= min(before, default=1) - 1 else 1
        )
    return positions


def _rows_by_position(log: LogRows) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in log.events:
        found.setdefault(row_position(row), []).append(row)
    return found


def restore_tables(url: str, rows: Mapping[str, Sequence[tuple[SqlValue, ...]]]) -> None:
    """Replaces the content of the tables, as their owner."""
    with owner_transaction(url) as (run, run_many):
        for table, content in rows.items():
            run(f"delete from {table}", ())
            if content:
                run_many(f"insert into {table} values ({', '.join('?' for _ in content[0])})", content)
