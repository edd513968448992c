"""Which edges are hollow: somebody who lent along their line has ended, and the ending is still to be settled.

Time makes none hollow, because an edge lasts no longer than its sessions and its parent. So only where an ending is
under way, and its sessions stamped, can there be any, and only there are lines walked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import Above, Standing
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import Ref
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import decode


async def hollow(tx: Tx, edges: Iterable[Ref], standings: Mapping[str, Standing]) -> set[Ref]:
    """Of these edges, and of those in their lines, all that are."""
    asked: list[tuple[object, ...]] = [*sorted({ref for ref in edges if standings[ref[0]].is_ending})]
    if not asked:
        return set()
    [rows] = await tx.read(Q.delegations_above(batch=asked))
    return rules.hollow(decode(rows, Above))
