"""Reads of agents that have a launcher, across zones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quarterdeck.domain.agents.model import Agent, State
from quarterdeck.domain.agents.queries import Q
from quarterdeck.engine.transaction import Transaction


async def list_launch_zones(tx: Transaction, after: Mapping[str, str], limit: int) -> list[tuple[str, str]]:
    """Return (launcher, zone id) pairs that have agents. `after` maps each launcher to the zone to continue after."""
    batch = sorted(after.items())
    [rows] = await tx.read(Q.agents_launch_zones(batch=batch, limit=limit))
    return [(str(launcher), str(zone_id)) for launcher, zone_id in rows]


async def list_launchable(tx: Transaction, launcher_zones: Sequence[tuple[str, str]], limit: int) -> list[Agent]:
    """Return the IDLE agents of these (launcher, zone id) pairs that have a free slot and accept tasks."""
    batch = [(*launcher_zone, State.IDLE, 1, 0) for launcher_zone in sorted(set(launcher_zones))]
    return await tx.fetch(Agent, Q.agents_launchable(batch=batch, limit=limit))
