"""Tasks with secrets that are encrypted with given keys, and the rotation that encrypts them again."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from quarterdeck.domain.tasks.operations.persist import SECRET_COLUMNS
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.secrets import Keyring, SecretKey, key_check
from quarterdeck.engine.secrets.rotation import SecretRotation
from quarterdeck.engine.transaction import Transaction
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness
from tests.support.secret_keys import NEW_KEY, OLD_KEY, cipher_of
from tests.support.task_rules import CONTENT, task_row


def rotation_of(runtime: RuntimeHarness, *keys: SecretKey) -> SecretRotation:
    return SecretRotation(
        runtime.engine, runtime.cross_zone_engine, cipher_of(*keys), [SECRET_COLUMNS], zones.lock_statement
    )


async def insert_secret_tasks(
    runtime: RuntimeHarness, *task_ids: str, key: SecretKey = OLD_KEY, zone_id: str = ZONE
) -> None:
    """Insert tasks whose input, result and checkpoint each have one secret, encrypted with this key."""
    cipher = cipher_of(key)
    batch: list[tuple[Any, ...]] = []
    for task_id in task_ids:
        encrypted_fields = {
            field: cipher.encrypt(
                {"password": f"{field} of {task_id}"}, (zone_id, SECRET_COLUMNS.table, task_id, field)
            )
            for field in SECRET_COLUMNS.fields
        }
        task = msgspec.structs.replace(task_row(task_id=task_id), zone_id=zone_id)
        content = msgspec.structs.replace(CONTENT, **encrypted_fields)
        batch.append((*msgspec.structs.astuple(task), *msgspec.structs.astuple(content)))

    async def write(tx: Transaction) -> None:
        await tx.read()
        tx.write(Q.tasks_insert(batch=batch))

    await runtime.engine.transact(write, zones=[zone_id])


def stored_secrets(runtime: RuntimeHarness, task_id: str, zone_id: str = ZONE) -> dict[str, str]:
    """The stored secret columns of a task, by field."""
    columns = ", ".join(SECRET_COLUMNS.fields)
    [found] = runtime.database.execute(
        f"select {columns} from agent_tasks where zone_id = ? and id = ?", zone_id, task_id
    )
    return {field: str(text) for field, text in zip(SECRET_COLUMNS.fields, found, strict=True)}


async def run_secret_workload(runtime: RuntimeHarness) -> None:
    """Run every statement of secret keys: the check at start, a rotation, and the deletion of the old key."""
    await insert_secret_tasks(runtime, "secret-task")
    for key in (OLD_KEY, NEW_KEY):
        keyring = Keyring([key, OLD_KEY] if key is NEW_KEY else [key])
        await runtime.engine.transact(partial(key_check.check_keys, keyring=keyring, lost_key_ids=()))
    await rotation_of(runtime, NEW_KEY, OLD_KEY).rotate(None)
    await runtime.cross_zone_engine.read(key_check.list_key_ids)
    await runtime.engine.transact(lambda tx: key_check.delete_check(tx, OLD_KEY.id))
