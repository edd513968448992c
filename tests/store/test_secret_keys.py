"""Keys and their database: who lacks one does not serve, and what an older one has sealed is sealed anew."""

from __future__ import annotations

import asyncio
import json
import stat
import traceback
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TypeVar

import pytest

from quarterdeck.engine.secrets import Keyring, KeyringError, SecretKey, key_check, rotation as steps
from quarterdeck.engine.secrets.field_encryption import key_ids_in
from quarterdeck.engine.secrets.rotation import RotationStep, SecretRotation
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.settings import SettingsError, load_settings
from quarterdeck.store.interface import ContentError
from quarterdeck.store.sql import Statement, Statements, parse
from quarterdeck.wiring.secrets import open_keyring
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness
from tests.support.secret_rotation import NEW_KEY, OLD_KEY, cipher_of, insert_secret_tasks, rotation_of, stored_secrets

MORE = "another"
T = TypeVar("T")


async def start(keel: RuntimeHarness, *keys: SecretKey, lost: Collection[str] = ()) -> None:
    await keel.engine.transact(lambda tx: key_check.check_keys(tx, Keyring(keys), lost))


async def whole(rotation: SecretRotation) -> RotationStep:
    """A round from the beginning to the end, as its steps add up."""
    done = RotationStep(next=rotation.first_position())
    while done.next is not None:
        step = await rotation.rotate(done.next)
        done.rows_scanned += step.rows_scanned
        done.counts += step.counts
        done.reencrypted += step.reencrypted
        done.undecryptable += step.undecryptable
        done.changed_meanwhile += step.changed_meanwhile
        done.next = step.next
    return done


# -- whether these are the database's keys


async def test_a_server_with_the_keys_of_its_database_starts_again_and_again(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    await start(runtime, OLD_KEY)
    await start(runtime, NEW_KEY, OLD_KEY)
    assert await runtime.cross_zone_engine.read(key_check.list_key_ids) == ["new", "old"]


async def test_a_server_that_lacks_a_key_of_its_database_does_not_start(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    with pytest.raises(KeyringError, match="'old', which this server lacks"):
        await start(runtime, NEW_KEY)
    assert await runtime.cross_zone_engine.read(key_check.list_key_ids) == ["old"], (
        "what was refused has left nothing behind"
    )


async def test_a_server_with_another_key_of_the_same_name_does_not_start(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    with pytest.raises(KeyringError, match="another key of the name 'old'"):
        await start(runtime, SecretKey("old", b"x" * 32))


async def test_a_key_that_is_said_to_be_lost_is_gone_on_without(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    await start(runtime, NEW_KEY, lost=["old"])


async def test_of_two_who_bring_different_keys_to_a_fresh_database_at_once_one_starts(runtime: RuntimeHarness) -> None:
    done = await asyncio.gather(start(runtime, OLD_KEY), start(runtime, NEW_KEY), return_exceptions=True)
    assert [type(outcome) for outcome in done if outcome is not None] == [KeyringError]


async def test_a_key_that_was_forgotten_is_needed_no_more(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    assert await runtime.engine.transact(lambda tx: key_check.delete_key(tx, "old"))
    assert not await runtime.engine.transact(lambda tx: key_check.delete_key(tx, ""))
    await start(runtime, NEW_KEY)


# -- rotation


async def test_everything_an_older_key_has_sealed_is_sealed_anew_and_says_the_same(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(MORE)
    await insert_secret_tasks(runtime, "a", "b")
    await insert_secret_tasks(runtime, "a", zone_id=MORE)
    await insert_secret_tasks(runtime, "c", key=NEW_KEY)
    before = stored_secrets(runtime, "c")
    done = await whole(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (done.rows_scanned, done.reencrypted, done.undecryptable, done.changed_meanwhile) == (4, 9, 0, 0)
    for zone_id, task_id in ((ZONE, "a"), (ZONE, "b"), (MORE, "a")):
        for field, text in stored_secrets(runtime, task_id, zone_id).items():
            assert key_ids_in(text) == ["new"]
            opened = cipher_of(NEW_KEY).decrypt(text, (zone_id, "agent_tasks", task_id, field))
            assert json.loads(opened) == {"password": f"{field} of {task_id}"}
    assert stored_secrets(runtime, "c") == before
    again = await whole(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (again.reencrypted, again.counts) == (0, {"new": 12})


async def test_a_rotation_goes_on_where_a_killed_one_ended(
    runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "PAGE_ROWS", 2)
    monkeypatch.setattr(steps, "PAGES_PER_STEP", 1)
    await insert_secret_tasks(runtime, *"abcde")
    first = await rotation_of(runtime, NEW_KEY, OLD_KEY).rotate(None)
    assert (first.rows_scanned, first.reencrypted) == (2, 6)
    assert first.next is not None
    counted = await rotation_of(runtime, NEW_KEY, OLD_KEY).count(None)
    assert (counted.rows_scanned, counted.counts) == (2, {"new": 6})
    done = await whole(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (done.rows_scanned, done.reencrypted) == (5, 9)


async def test_what_is_said_while_a_row_is_sealed_anew_stays_said(runtime: RuntimeHarness) -> None:
    await insert_secret_tasks(runtime, "a", "b")
    rotation = rotation_of(runtime, NEW_KEY, OLD_KEY)

    class Interrupted(Engine):
        async def read(
            self,
            operation: Callable[[Transaction], Awaitable[T]],
            *,
            zones: Collection[str] = (),
            for_writer: bool = False,
        ) -> T:
            rows = await super().read(operation, zones=zones, for_writer=for_writer)
            runtime.database.execute("update agent_tasks set checkpoint_data = '{\"new\":1}' where id = 'a'")
            return rows

    beside = SecretRotation(
        rotation.engine,
        Interrupted(runtime.cross_zone_engine.store),
        rotation.cipher,
        rotation.secret_columns,
        rotation.lock_zones,
    )
    done = await beside.rotate(None)
    assert (done.reencrypted, done.changed_meanwhile) == (3, 1)
    assert stored_secrets(runtime, "a")["checkpoint_data"] == '{"new":1}'
    assert key_ids_in(stored_secrets(runtime, "a")["input_context"]) == ["old"], "the next round looks at it again"
    assert (await whole(rotation)).reencrypted == 2


async def test_what_does_not_open_stays_as_it_is_and_is_counted(runtime: RuntimeHarness) -> None:
    await insert_secret_tasks(runtime, "a", key=SecretKey("gone", b"g" * 32))
    await insert_secret_tasks(runtime, "b")
    before = stored_secrets(runtime, "a")
    done = await whole(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (done.reencrypted, done.undecryptable) == (3, 3)
    assert stored_secrets(runtime, "a") == before


# -- the file


def test_the_first_start_makes_a_key_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {}, {})
    with pytest.raises(SettingsError, match="no key for secrets"):
        open_keyring(settings, create_key=False)
    first = open_keyring(settings, create_key=True)
    assert stat.S_IMODE(settings.secret_keys.stat().st_mode) == 0o600
    assert open_keyring(settings, create_key=True).key_ids == first.key_ids
    assert open_keyring(settings, create_key=False).key_ids == first.key_ids


def test_of_many_who_start_at_once_all_have_the_same_key(tmp_path: Path) -> None:
    async def at_once() -> set[tuple[str, ...]]:
        settings = load_settings(tmp_path, {}, {})
        rings = [asyncio.to_thread(open_keyring, settings, create_key=True) for _ in range(8)]
        return {ring.key_ids for ring in await asyncio.gather(*rings)}

    assert len(asyncio.run(at_once())) == 1


def test_keys_that_are_told_are_used_and_no_file_is_made(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {}, {"QD_SECRET_KEYS": f"{NEW_KEY.to_text()},{OLD_KEY.to_text()}"})
    assert open_keyring(settings, create_key=True).key_ids == ("new", "old")
    assert not settings.secret_keys.exists()
    assert settings.values["secret_keys"].display_value() == "***"


@pytest.mark.parametrize(("content", "mode"), [(b"\xff\xfe", 0o600), (b"hush", 0o600), (b"", 0o600), (b"x", 0o644)])
def test_a_key_file_that_cannot_serve_is_named_and_not_told(tmp_path: Path, content: bytes, mode: int) -> None:
    settings = load_settings(tmp_path, {}, {})
    settings.secret_keys.write_bytes(content)
    settings.secret_keys.chmod(mode)
    with pytest.raises(SettingsError, match="secret-keys") as refused:
        open_keyring(settings, create_key=True)
    assert "hush" not in str(refused.value)


# -- what the database says of what it refuses

REFUSED = Statements(
    parse("""
-- name: as_number
select cast(:said as bigint);

-- name: twice
insert into secret_checks (key_id, sealed, created_at) values (:said, '', 1), (:said, '', 1);
""")
)


@pytest.mark.parametrize("statement", [*REFUSED], ids=lambda statement: statement.name)
async def test_a_value_that_the_database_refuses_is_not_in_what_is_logged_of_it(
    runtime: RuntimeHarness, statement: Statement
) -> None:
    secret = f"canary{len(statement.name)}"
    try:
        await runtime.engine.transact(lambda tx: tx.read(statement(said=secret)))
    except ContentError as refused:
        told = "".join(traceback.format_exception(refused))
        assert secret not in told
    else:
        assert (runtime.store.kind, statement.name) == ("sqlite", "as_number"), "SQLite makes a number of any text"
