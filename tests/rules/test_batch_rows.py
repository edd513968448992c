"""The shared parts of deciders: rows, keys and attempts of one batch."""

from __future__ import annotations

import msgspec

from quarterdeck.core.attempts import is_latest_attempt
from quarterdeck.core.batch_rows import BatchRows
from quarterdeck.core.command import Command
from quarterdeck.core.errors import KeyConflict
from quarterdeck.core.idempotency import BatchKeys, Key, new_record
from tests.support.builders import ZONE, caller


class Row(msgspec.Struct, frozen=True):
    id: str
    value: int = 0
    status: str = "open"
    attempt_token: str | None = None

    @property
    def ref(self) -> tuple[str, str]:
        return (ZONE, self.id)


KEY = Key(ZONE, "app", "row.create", "k")


def test_row_that_changes_twice_is_written_once_against_the_loaded_row() -> None:
    rows = BatchRows([Row("a"), Row("b")])
    rows.update(Row("a", 1))
    rows.update(Row("a", 2))
    assert rows.updates() == [(Row("a"), Row("a", 2))]
    assert rows[ZONE, "a"] == Row("a", 2)
    assert not rows.inserts()


def test_changes_of_a_new_row_are_part_of_its_insert() -> None:
    rows = BatchRows[Row]()
    rows.insert(Row("a"))
    rows.update(Row("a", 1))
    assert rows.inserts() == [Row("a", 1)]
    assert not rows.updates()


def test_row_that_two_statements_load_is_taken_from_the_first() -> None:
    assert [*BatchRows([Row("a", 1), Row("a", 2)]).values()] == [Row("a", 1)]


def test_event_names_the_sender_of_its_command() -> None:
    rows = BatchRows[Row]()
    rows.emit("row.created", None, Row("a"), Command(zone_id=ZONE, caller=caller("c"), trace="t"), {"reason": "r"})
    [event] = rows.events
    assert (event.actor, event.trace, event.data) == (caller("c").subject, "t", {"reason": "r"})


def test_key_returns_its_object_and_refuses_another_request() -> None:
    for keys in (BatchKeys({KEY: new_record(KEY, "digest", "1")}), BatchKeys({})):
        if keys.find(KEY, "digest") is None:
            keys.add(KEY, "digest", "1")
        assert keys.find(KEY, "digest") == "1"
        assert isinstance(keys.find(KEY, "other"), KeyConflict)


def test_only_new_keys_are_stored_and_a_request_without_key_adds_none() -> None:
    keys = BatchKeys({KEY: new_record(KEY, "digest", "1")})
    keys.add(None, "digest", "2")
    assert keys.find(None, "digest") is None
    assert not keys.new_records


def test_only_the_token_of_the_latest_attempt_passes_and_only_in_the_given_states() -> None:
    row = Row("a", attempt_token="new")
    assert is_latest_attempt(row, "new", ("open",))
    assert not is_latest_attempt(row, "old", ("open",))
    assert not is_latest_attempt(row, "new", ("closed",))
    assert not is_latest_attempt(Row("a"), None, ("open",)), "a row without attempt accepts no report"
