"""Tasks with secrets in them, planted under keys, and whoever seals them anew."""

from __future__ import annotations

from functools import partial

import msgspec

from quarterdeck.domain.tasks.operations.persist import TASKS
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.secrets import Key, Ring, Safe, key_check
from quarterdeck.engine.secrets.rotation import Rotation
from quarterdeck.engine.transaction import Tx
from tests.support.asking import ZONE
from tests.support.keel import Keel
from tests.support.tasking import CONTENT, row

OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)


def safe_of(*keys: Key) -> Safe:
    return Safe(Ring(keys), b"p" * 32)


def rotation_of(keel: Keel, *keys: Key) -> Rotation:
    return Rotation(keel.engine, keel.everywhere, safe_of(*keys), [TASKS], zones.lock)


async def plant(keel: Keel, *task_ids: str, key: Key = OLD, zone_id: str = ZONE) -> None:
    """Tasks whose input, result and checkpoint each hold one secret, sealed with this key."""
    safe = safe_of(key)
    batch: list[tuple[object, ...]] = []
    for task_id in task_ids:
        said = {
            field: safe.seal({"password": f"{field} of {task_id}"}, (zone_id, TASKS.table, task_id, field))
            for field in TASKS.fields
        }
        task = msgspec.structs.replace(row(task_id=task_id), zone_id=zone_id)
        content = msgspec.structs.replace(CONTENT, **said)
        batch.append((*msgspec.structs.astuple(task), *msgspec.structs.astuple(content)))

    async def write(tx: Tx) -> None:
        await tx.read()
        tx.write(Q.tasks_insert(batch=batch))

    await keel.engine.transact(write, zones=[zone_id])


def kept(keel: Keel, task_id: str, zone_id: str = ZONE) -> dict[str, str]:
    """What a task's row says, by field."""
    wanted = ", ".join(TASKS.fields)
    [found] = keel.side.run(f"select {wanted} from agent_tasks where zone_id = ? and id = ?", zone_id, task_id)
    return {field: str(text) for field, text in zip(TASKS.fields, found, strict=True)}


async def sealing(keel: Keel) -> None:
    """A day of keys: a start, a value under an older key, a rotation, and the older key forgotten."""
    await plant(keel, "sealed-task")
    for key in (OLD, NEW):
        ring = Ring([key, OLD] if key is NEW else [key])
        await keel.engine.transact(partial(key_check.check, ring=ring, lost=()))
    await rotation_of(keel, NEW, OLD).rotate(None)
    await keel.everywhere.read(key_check.names)
    await keel.engine.transact(lambda tx: key_check.forget(tx, OLD.id))
