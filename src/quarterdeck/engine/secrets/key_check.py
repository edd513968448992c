"""Whether this process has the keys of its database: asked before it serves.

Each key that seals has left a word, sealed, in `secret_checks`. Who lacks one of these keys, or has another one of its
name, would show `***` to an agent that needs a password; so it does not start. A replica that made a key file of its
own is found by this, and so is a key that was taken away before what it had sealed was sealed anew.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from quarterdeck.engine.queries import Q
from quarterdeck.engine.secrets.keyring import About, Ring, RingError, Unopened
from quarterdeck.engine.transaction import Tx

log = logging.getLogger("quarterdeck.secrets")
WORD = "quarterdeck"


async def check(tx: Tx, ring: Ring, lost: Collection[str]) -> None:
    """Raises RingError with a sentence. What is sealed from here on can be checked by whoever comes next."""
    _, rows = await tx.read(Q.secret_checks_turn(), Q.secret_checks_all())
    known = {str(key_id): str(sealed) for key_id, sealed in rows}
    for key_id, sealed in known.items():
        if key_id in ring.ids:
            _try(ring, key_id, sealed)
        elif key_id in lost:
            log.warning("what was sealed with the lost key %r is shown as ***", key_id)
        else:
            raise _missing(key_id)
    if ring.sealing_id not in known:
        tx.write(Q.secret_checks_add(key_id=ring.sealing_id, sealed=ring.seal(WORD, _about(ring.sealing_id))))


async def names(tx: Tx) -> list[str]:
    """The keys that values may be sealed with."""
    [rows] = await tx.read(Q.secret_checks_all())
    return [str(row[0]) for row in rows]


async def forget(tx: Tx, key_id: str) -> bool:
    """Whether there was such a key: from now on servers start without it."""
    [rows] = await tx.read(Q.secret_checks_forget(key_id=key_id))
    return bool(rows)


def _try(ring: Ring, key_id: str, sealed: str) -> None:
    try:
        ring.open(sealed, _about(key_id))
    except Unopened:
        raise RingError(
            f"The secrets of this database were sealed with another key of the name {key_id!r} than this server has."
        ) from None


def _about(key_id: str) -> About:
    return ("", "secret_checks", key_id, "sealed")


def _missing(key_id: str) -> RingError:
    return RingError(
        f"Secrets of this database were sealed with the key {key_id!r}, which this server lacks. Name it in "
        "QD_SECRET_KEYS, as every server of the database must, or put the key file `secret-keys` of the first server "
        "into the data directory. If the key is lost for good: QD_SECRET_KEYS_LOST names those to go on without."
    )
