"""What tasks depend on, and what depends on them, as far as it is shown: so many of each task, and not a page full of
the first one's.

How many a task depends on stands in its row, so those with more than are shown are asked for by themselves. How many
depend on it stands nowhere: they are asked for all at once, and one by one only if that was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.domain.tasks.model.rows import Ref, Task
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import Bound

SHOWN_MAX = 10_000
"""Of what a task depends on, and of what depends on it, where it is shown by itself."""
LISTED_MAX = 100
"""And where it is one of many."""
GATHERED_MAX = 5_000
"""Dependents that are asked for at once, of however many tasks."""


class Ties(msgspec.Struct, frozen=True):
    depends_on: tuple[str, ...] = ()
    blocks: tuple[str, ...] = ()
    has_more_blocks: bool = False


async def read(tx: Tx, tasks: Iterable[Task], most: Mapping[Ref, int]) -> dict[Ref, Ties]:
    """Of those that have any, `most` of each."""
    wanted = [task for task in tasks if most[task.zone_id, task.id]]
    if not wanted:
        return {}
    refs = [(task.zone_id, task.id) for task in wanted]
    asked = ahead(wanted, most)
    *answers, behind = await tx.read(*asked, Q.tasks_blocks(batch=[*refs], limit=GATHERED_MAX + 1))
    if len(behind) > GATHERED_MAX:
        each = await tx.read(*(Q.tasks_blocks(batch=[ref], limit=most[ref] + 1) for ref in refs))
        behind = [row for rows in each for row in rows]
    depends_on, blocks = gathered(row for rows in answers for row in rows), gathered(behind)
    return {
        ref: Ties(depends_on.get(ref, ()), blocks.get(ref, ())[: most[ref]], len(blocks.get(ref, ())) > most[ref])
        for ref in refs
        if ref in depends_on or ref in blocks
    }


def ahead(tasks: Sequence[Task], most: Mapping[Ref, int]) -> list[Bound]:
    """What these depend on."""
    few = {(task.zone_id, task.id): task.depends for task in tasks if task.depends}
    many = [ref for ref, number in few.items() if number > most[ref]]
    for ref in many:
        del few[ref]
    asked = [Q.tasks_ahead(batch=[*few], limit=sum(few.values()))] if few else []
    return asked + [Q.tasks_ahead(batch=[ref], limit=most[ref]) for ref in many]


def gathered(rows: Iterable[Row]) -> dict[Ref, tuple[str, ...]]:
    """(zone, task, another) of each tie, by task."""
    found: dict[Ref, list[str]] = {}
    for zone_id, one, other in rows:
        found.setdefault((str(zone_id), str(one)), []).append(str(other))
    return {ref: tuple(sorted(names)) for ref, names in found.items()}
