"""Hands that change a log behind the server's back, with everything a database lets them do and without the key.

A `Log` is the rows of the three tables as they are. Each of `WAYS` changes it by chance; `first_difference` says, by
comparing rows and believing no hash, which row a proof has to name.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

import psycopg

from quarterdeck.core.audit_seal import Row, row_position
from quarterdeck.core.audit_verify import VerificationInput
from quarterdeck.maintenance.queries import Q
from quarterdeck.maintenance.snapshot import first_row, iter_rows, open_snapshot
from quarterdeck.store.migrate import sqlite_path

EVENT = ["pos", "id", "zone_id", "type", "subject", "actor", "from_state", "to_state", "data", "trace", "at"]
SEAL = ["number", "first_pos", "last_pos", "floor", "digest", "leaves", "previous", "hash", "kid", "signature", "at"]
NULLABLE = ("from_state", "to_state", "trace")


@dataclass(frozen=True)
class Log:
    head: int
    floor: int
    seals: tuple[Row, ...]
    events: tuple[Row, ...]

    def evidence(self, page: int = 7) -> VerificationInput:
        return VerificationInput(
            (self.head, self.floor), self.seals[-1] if self.seals else None, self.seals, self._pages(page)
        )

    def _pages(self, size: int) -> Iterator[Sequence[Row]]:
        left = iter(self.events)
        while page := tuple(itertools.islice(left, size)):
            yield page

    @property
    def sealed(self) -> int:
        """The last position that a seal speaks of."""
        return int(str(self.seals[-1][2])) if self.seals else 0

    @property
    def attested(self) -> int:
        """The floor that the newest seal signs for."""
        return int(str(self.seals[-1][3])) if self.seals else 0

    @property
    def anchor(self) -> str:
        return f"{self.seals[-1][0]}:{self.seals[-1][7]}"

    def holding(self, events: Sequence[Row]) -> Log:
        return replace(self, events=tuple(sorted(events, key=row_position)))

    def position(self, chance: Random) -> int:
        return row_position(chance.choice(self.events))


# -- the rows of a database, and back ------------------------------------------------------------------------------


def read_log(url: str) -> Log:
    with open_snapshot(url) as snapshot:
        head = first_row(snapshot, Q.log_head_row())
        assert head is not None
        pos, floor = (int(str(value)) for value in head)
        return Log(pos, floor, tuple(iter_rows(snapshot, Q.seals_all())), tuple(iter_rows(snapshot, Q.events_all())))


def write_log(url: str, log: Log) -> None:
    """Puts these rows in the place of those that are there."""
    with owner_of(url) as (run, each):
        for table, columns, content in (("events", EVENT, log.events), ("seals", SEAL, log.seals)):
            run(f"delete from {table}", ())
            values = ", ".join("?" for _ in columns)
            each(f"insert into {table} ({', '.join(columns)}) values ({values})", content)
        run("update log_head set pos = ?, floor = ?", (log.head, log.floor))


Run = Callable[[str, Row], object]
Each = Callable[[str, Sequence[Row]], object]


@contextlib.contextmanager
def owner_of(url: str) -> Iterator[tuple[Run, Each]]:
    """One transaction of somebody whom nothing holds: run a statement, or one for each of many rows, with `?`."""
    if path := sqlite_path(url):
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as sqlite, sqlite:
            yield sqlite.execute, sqlite.executemany
        return
    with psycopg.connect(url) as postgres, postgres.cursor() as cursor:
        yield (
            lambda statement, values: cursor.execute(statement.replace("?", "%s").encode(), values),
            lambda statement, values: cursor.executemany(statement.replace("?", "%s").encode(), values),
        )


# -- what hands do -------------------------------------------------------------------------------------------------


def edited(log: Log, chance: Random) -> Log:
    """One value of one event is another."""
    target, column = log.position(chance), chance.choice(EVENT[1:])
    place = EVENT.index(column)

    def changed(row: Row) -> Row:
        value = row[place]
        if column == "at":
            value = int(str(value)) + chance.choice((-1, 1, 86_400_000))
        elif column in NULLABLE and value is not None and chance.random() < 0.5:
            value = None
        elif column == "data":
            value = chance.choice((str(value) + " ", str(value).replace(":", ": ", 1), "{}", "{ }"))
        else:
            value = f"{'' if value is None else value}{chance.choice('x 0é')}"
        return (*row[:place], value, *row[place + 1 :])

    return log.holding([changed(row) if row_position(row) == target else row for row in log.events])


def deleted(log: Log, chance: Random) -> Log:
    """One event, a run of them, or some here and there."""
    begin = log.position(chance)
    match chance.randrange(3):
        case 0:
            gone = {begin}
        case 1:
            gone = set(range(begin, begin + chance.randint(2, 20)))
        case _:
            gone = {log.position(chance) for _ in range(chance.randint(2, 10))}
    return log.holding([row for row in log.events if row_position(row) not in gone])


def inserted(log: Log, chance: Random) -> Log:
    """A row beyond the end, before the beginning, or in the middle, where those behind make room for it."""
    forged = chance.choice(log.events)[1:]
    match chance.randrange(3):
        case 0:
            return log.holding([*log.events, (log.head + chance.randint(1, 50), *forged)])
        case 1:
            return log.holding([*log.events, (-chance.randint(0, 50), *forged)])
        case _:
            at = log.position(chance)
            moved = [(row_position(row) + (row_position(row) >= at), *row[1:]) for row in log.events]
            return log.holding([*moved, (at, *forged)])


def reordered(log: Log, chance: Random) -> Log:
    """Two events change places, or a run of them is turned around or shuffled."""
    contents = [row[1:] for row in log.events]
    one, two = sorted(chance.sample(range(len(contents)), 2))
    match chance.randrange(3):
        case 0:
            contents[one], contents[two] = contents[two], contents[one]
        case 1:
            contents[one : two + 1] = contents[one : two + 1][::-1]
        case _:
            run = contents[one : two + 1]
            chance.shuffle(run)
            contents[one : two + 1] = run
    positions = [row_position(row) for row in log.events]
    return log.holding([(pos, *content) for pos, content in zip(positions, contents, strict=True)])


def truncated(log: Log, chance: Random) -> Log:
    """The beginning or the end is gone; of the end perhaps the seals, too, and the head says so."""
    cut = log.position(chance)
    match chance.randrange(4):
        case 0:
            # Not the whole of what retention may take: that is for retention's own tests.
            cut = max(cut, log.floor + 1)
            return log.holding([row for row in log.events if row_position(row) > cut])
        case 1:
            seals = [seal for seal in log.seals if int(str(seal[2])) > cut]
            short = replace(log, seals=tuple(seals))
            return short.holding([row for row in log.events if row_position(row) > max(cut, log.floor)])
        case 2:
            return _without_end(log, cut, chance, with_seals=False)
        case _:
            return _without_end(log, cut, chance, with_seals=True)


def _without_end(log: Log, cut: int, chance: Random, *, with_seals: bool) -> Log:
    last = cut - 1
    seals = log.seals
    if with_seals:
        seals = tuple(seal for seal in log.seals if int(str(seal[2])) <= last)
        last = int(str(seals[-1][2])) if seals and chance.random() < 0.5 else last
    head = chance.choice((log.head, last))
    short = replace(log, seals=seals, head=head, floor=int(str(seals[-1][3])) if seals else 0)
    return short.holding([row for row in log.events if row_position(row) <= last])


WAYS: dict[str, Callable[[Log, Random], Log]] = {
    "edit": edited,
    "delete": deleted,
    "insert": inserted,
    "reorder": reordered,
    "truncate": truncated,
}


def first_difference(log: Log, altered: Log) -> set[int]:
    """The positions that may be named: of the first row that differs; and, where seals were cut off with it, of the
    first row for which there is no seal any more, or no seal that says that it may be gone. Empty if nothing was
    changed that retention might not have."""
    before, after = _by_position(log), _by_position(altered)
    lowest = min(before, default=1)
    differ = sorted(pos for pos in before.keys() | after.keys() if before.get(pos) != after.get(pos))
    # Retention takes the lowest first, up to the floor; whoever does just that has done nothing it could not.
    while differ and differ[0] == lowest <= log.floor and lowest not in after:
        lowest += 1
        differ.pop(0)
    named = set(differ[:1])
    if altered.seals != log.seals:
        kept = log.seals[: len(altered.seals)] == altered.seals
        named.add(altered.sealed + 1 if kept and altered.attested >= min(before, default=1) - 1 else 1)
    return named


def _by_position(log: Log) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in log.events:
        found.setdefault(row_position(row), []).append(row)
    return found
