"""Secret keys: the check at start, rotation, and the key file."""

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
from quarterdeck.engine.settings import SettingsError
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.http.secret_component import open_keyring
from quarterdeck.settings import load_settings
from quarterdeck.store.interface import ContentError
from quarterdeck.store.sql import Statement, Statements, parse
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness
from tests.support.secret_keys import NEW_KEY, OLD_KEY, cipher_of
from tests.support.secret_rotation import insert_secret_tasks, rotation_of, stored_secrets

SECOND_ZONE = "zone-2"
T = TypeVar("T")


async def start(runtime: RuntimeHarness, *keys: SecretKey, lost: Collection[str] = ()) -> None:
    await runtime.engine.transact(lambda tx: key_check.check_keys(tx, Keyring(keys), lost))


async def rotate_all(rotation: SecretRotation) -> RotationStep:
    """Rotate all secrets. Returns the sum of all steps."""
    total = RotationStep(next=rotation.first_position())
    while total.next is not None:
        step = await rotation.rotate(total.next)
        total.rows_scanned += step.rows_scanned
        total.counts += step.counts
        total.reencrypted += step.reencrypted
        total.undecryptable += step.undecryptable
        total.changed_meanwhile += step.changed_meanwhile
        total.next = step.next
    return total


# -- key check at start


async def test_server_starts_repeatedly_with_the_keys_of_its_database(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    await start(runtime, OLD_KEY)
    await start(runtime, NEW_KEY, OLD_KEY)
    assert await runtime.cross_zone_engine.read(key_check.list_key_ids) == ["new", "old"]


async def test_server_that_lacks_a_key_of_its_database_does_not_start(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    with pytest.raises(KeyringError, match="'old', which this server lacks"):
        await start(runtime, NEW_KEY)
    assert await runtime.cross_zone_engine.read(key_check.list_key_ids) == ["old"], "a refused start stores no key"


async def test_server_with_a_different_key_of_the_same_id_does_not_start(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    with pytest.raises(KeyringError, match="is not the key 'old'"):
        await start(runtime, SecretKey("old", b"x" * 32))


async def test_server_starts_without_a_key_that_is_configured_as_lost(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    await start(runtime, NEW_KEY, lost=["old"])


async def test_concurrent_first_starts_with_different_keys_let_one_server_start(runtime: RuntimeHarness) -> None:
    outcomes = await asyncio.gather(start(runtime, OLD_KEY), start(runtime, NEW_KEY), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome is not None] == [KeyringError]


async def test_deleted_key_is_not_required_at_start(runtime: RuntimeHarness) -> None:
    await start(runtime, OLD_KEY)
    assert await runtime.engine.transact(lambda tx: key_check.delete_check(tx, "old"))
    assert not await runtime.engine.transact(lambda tx: key_check.delete_check(tx, ""))
    await start(runtime, NEW_KEY)


# -- rotation


async def test_rotation_reencrypts_all_secrets_of_older_keys_and_keeps_their_values(runtime: RuntimeHarness) -> None:
    await runtime.put_zone(SECOND_ZONE)
    await insert_secret_tasks(runtime, "a", "b")
    await insert_secret_tasks(runtime, "a", zone_id=SECOND_ZONE)
    await insert_secret_tasks(runtime, "c", key=NEW_KEY)
    before = stored_secrets(runtime, "c")
    total = await rotate_all(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (total.rows_scanned, total.reencrypted, total.undecryptable, total.changed_meanwhile) == (4, 9, 0, 0)
    for zone_id, task_id in ((ZONE, "a"), (ZONE, "b"), (SECOND_ZONE, "a")):
        for field, text in stored_secrets(runtime, task_id, zone_id).items():
            assert key_ids_in(text) == ["new"]
            decrypted = cipher_of(NEW_KEY).decrypt(text, (zone_id, "agent_tasks", task_id, field))
            assert json.loads(decrypted) == {"password": f"{field} of {task_id}"}
    assert stored_secrets(runtime, "c") == before
    again = await rotate_all(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (again.reencrypted, again.counts) == (0, {"new": 12})


async def test_rotation_continues_after_a_killed_one(runtime: RuntimeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PAGE_ROWS", 2)
    monkeypatch.setattr(steps, "PAGES_PER_STEP", 1)
    await insert_secret_tasks(runtime, *"abcde")
    first = await rotation_of(runtime, NEW_KEY, OLD_KEY).rotate(None)
    assert (first.rows_scanned, first.reencrypted) == (2, 6)
    assert first.next is not None
    counted = await rotation_of(runtime, NEW_KEY, OLD_KEY).count(None)
    assert (counted.rows_scanned, counted.counts) == (2, {"new": 6})
    total = await rotate_all(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (total.rows_scanned, total.reencrypted) == (5, 9)


async def test_rotation_does_not_overwrite_a_concurrent_update(runtime: RuntimeHarness) -> None:
    await insert_secret_tasks(runtime, "a", "b")
    rotation = rotation_of(runtime, NEW_KEY, OLD_KEY)

    class InterruptedEngine(Engine):
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

    interrupted = SecretRotation(
        rotation.engine,
        InterruptedEngine(runtime.cross_zone_engine.store),
        rotation.cipher,
        rotation.secret_columns,
        rotation.lock_zones,
    )
    step = await interrupted.rotate(None)
    assert (step.reencrypted, step.changed_meanwhile) == (3, 1)
    assert stored_secrets(runtime, "a")["checkpoint_data"] == '{"new":1}'
    assert key_ids_in(stored_secrets(runtime, "a")["input_context"]) == ["old"], (
        "the next rotation processes the row again"
    )
    assert (await rotate_all(rotation)).reencrypted == 2


async def test_undecryptable_secrets_are_kept_and_counted(runtime: RuntimeHarness) -> None:
    await insert_secret_tasks(runtime, "a", key=SecretKey("gone", b"g" * 32))
    await insert_secret_tasks(runtime, "b")
    before = stored_secrets(runtime, "a")
    total = await rotate_all(rotation_of(runtime, NEW_KEY, OLD_KEY))
    assert (total.reencrypted, total.undecryptable) == (3, 3)
    assert stored_secrets(runtime, "a") == before


# -- key file


def test_first_start_creates_a_key_file_with_mode_600(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {}, {})
    with pytest.raises(SettingsError, match="no key for secrets"):
        open_keyring(settings, settings.secret_keys_path, create_key=False)
    first = open_keyring(settings, settings.secret_keys_path, create_key=True)
    assert stat.S_IMODE(settings.secret_keys_path.stat().st_mode) == 0o600
    assert open_keyring(settings, settings.secret_keys_path, create_key=True).key_ids == first.key_ids
    assert open_keyring(settings, settings.secret_keys_path, create_key=False).key_ids == first.key_ids


def test_concurrent_first_starts_share_one_key(tmp_path: Path) -> None:
    async def open_concurrently() -> set[tuple[str, ...]]:
        settings = load_settings(tmp_path, {}, {})
        keyrings = [
            asyncio.to_thread(open_keyring, settings, settings.secret_keys_path, create_key=True) for _ in range(8)
        ]
        return {keyring.key_ids for keyring in await asyncio.gather(*keyrings)}

    assert len(asyncio.run(open_concurrently())) == 1


def test_configured_keys_are_used_and_no_key_file_is_created(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {}, {"QD_SECRET_KEYS": f"{NEW_KEY.to_text()},{OLD_KEY.to_text()}"})
    assert open_keyring(settings, settings.secret_keys_path, create_key=True).key_ids == ("new", "old")
    assert not settings.secret_keys_path.exists()
    assert settings.values["secret_keys"].display_value() == "***"


@pytest.mark.parametrize(("content", "mode"), [(b"\xff\xfe", 0o600), (b"canary", 0o600), (b"", 0o600), (b"x", 0o644)])
def test_error_for_an_invalid_key_file_names_the_file_without_its_content(
    tmp_path: Path, content: bytes, mode: int
) -> None:
    settings = load_settings(tmp_path, {}, {})
    settings.secret_keys_path.write_bytes(content)
    settings.secret_keys_path.chmod(mode)
    with pytest.raises(SettingsError, match="secret-keys") as refused:
        open_keyring(settings, settings.secret_keys_path, create_key=True)
    assert "canary" not in str(refused.value)


# -- database errors

REFUSED = Statements(
    parse("""
-- name: as_number
select cast(:value as bigint);

-- name: twice
insert into secret_checks (key_id, sealed, created_at) values (:value, '', 1), (:value, '', 1);
""")
)


@pytest.mark.parametrize("statement", [*REFUSED], ids=lambda statement: statement.name)
async def test_refused_value_is_not_in_the_logged_error(runtime: RuntimeHarness, statement: Statement) -> None:
    secret = f"canary{len(statement.name)}"
    try:
        await runtime.engine.transact(lambda tx: tx.read(statement(value=secret)))
    except ContentError as refused:
        logged = "".join(traceback.format_exception(refused))
        assert secret not in logged
    else:
        assert (runtime.store.kind, statement.name) == ("sqlite", "as_number"), "SQLite casts any text to a number"
