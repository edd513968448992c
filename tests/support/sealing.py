"""Tasks with secrets in them, planted under keys, and whoever seals them anew."""

from __future__ import annotations

from functools import partial

import msgspec

from quarterdeck.domain.tasks.operations.persist import SECRET_COLUMNS
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.secrets import FieldCipher, Keyring, SecretKey, key_check
from quarterdeck.engine.secrets.rotation import SecretRotation
from quarterdeck.engine.transaction import Transaction
from tests.support.asking import ZONE
from tests.support.keel import Keel
from tests.support.tasking import CONTENT, row

OLD, NEW = SecretKey("old", b"o" * 32), SecretKey("new", b"n" * 32)


def safe_of(*keys: SecretKey) -> FieldCipher:
    return FieldCipher(Keyring(keys), b"p" * 32)


def rotation_of(keel: Keel, *keys: SecretKey) -> SecretRotation:
    return SecretRotation(keel.engine, keel.everywhere, safe_of(*keys), [SECRET_COLUMNS], zones.lock_statement)


async def plant(keel: Keel, *task_ids: str, key: SecretKey = OLD, zone_id: str = ZONE) -> None:
    """Tasks whose input, result and checkpoint each hold one secret, sealed with this key."""
    safe = safe_of(key)
    batch: list[tuple[object, ...]] = []
    for task_id in task_ids:
        said = {
            field: safe.encrypt({"password": f"{field} of {task_id}"}, (zone_id, SECRET_COLUMNS.table, task_id, field))
            for field in SECRET_COLUMNS.fields
        }
        task = msgspec.structs.replace(row(task_id=task_id), zone_id=zone_id)
        content = msgspec.structs.replace(CONTENT, **said)
        batch.append((*msgspec.structs.astuple(task), *msgspec.structs.astuple(content)))

    async def write(tx: Transaction) -> None:
        await tx.read()
        tx.write(Q.tasks_insert(batch=batch))

    await keel.engine.transact(write, zones=[zone_id])


def kept(keel: Keel, task_id: str, zone_id: str = ZONE) -> dict[str, str]:
    """What a task's row says, by field."""
    wanted = ", ".join(SECRET_COLUMNS.fields)
    [found] = keel.side.run(f"select {wanted} from agent_tasks where zone_id = ? and id = ?", zone_id, task_id)
    return {field: str(text) for field, text in zip(SECRET_COLUMNS.fields, found, strict=True)}


async def sealing(keel: Keel) -> None:
    """A day of keys: a start, a value under an older key, a rotation, and the older key forgotten."""
    await plant(keel, "sealed-task")
    for key in (OLD, NEW):
        ring = Keyring([key, OLD] if key is NEW else [key])
        await keel.engine.transact(partial(key_check.check_keys, keyring=ring, lost_key_ids=()))
    await rotation_of(keel, NEW, OLD).rotate(None)
    await keel.everywhere.read(key_check.list_key_ids)
    await keel.engine.transact(lambda tx: key_check.delete_key(tx, OLD.id))
