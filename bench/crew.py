"""Fleets to be spoken in, whose members have no panes: what is typed for them to see is no part of what is measured."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench import ledger
from bench.asks import message_body
from bench.load import Requests
from bench.plan import BenchError
from bench.stage import Target

ZONE = "default"
FLEETS = "/api/v1/fleets"
HELD = """
select (select count(*) from messages where zone_id in {{zones}} and fleet_id = {fleet} and type = 'unicast'),
       (select count(*) from messages where zone_id in {{zones}} and fleet_id = {fleet} and type <> 'unicast'),
       (select count(*) from messages where zone_id in {{zones}} and fleet_id = {fleet} and type = 'unicast'
          and notified_at is null and notice is null)
"""
LOOK_SECONDS, LAST_SECONDS = 0.25, 120.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a database holds of a fleet, read in one snapshot."""

    messages: int
    broadcasts: int
    without_receipt: int


@dataclass(frozen=True, slots=True)
class Crew:
    """A fleet of the default zone: its director, and so many members."""

    target: Target
    fleet_id: int
    director: int
    members: list[int]

    @property
    def sends(self) -> Requests:
        """To the first member."""
        return self._posts(message_body(self.director, self.members[0]))

    @property
    def broadcasts(self) -> Requests:
        return self._posts(message_body(self.director, "*"))

    def _posts(self, body: str) -> Requests:
        return Requests([f"{FLEETS}/{self.fleet_id}/messages"], "POST", body)

    @property
    def polls(self) -> Requests:
        """By the first member."""
        inbox = f"{FLEETS}/{self.fleet_id}/members/{self.members[0]}/inbox"
        return Requests([f"{inbox}?status=input_required&limit=100"])

    def said(self) -> Said:
        return Said(*ledger.read(self.target, HELD.format(fleet=self.fleet_id), [ZONE]))

    def until_told(self) -> Said:
        """Returns when every message has its receipt, so that nothing of one run is left for the next."""
        latest = time.monotonic() + LAST_SECONDS
        while (said := self.said()).without_receipt:
            if time.monotonic() > latest:
                raise BenchError(f"{said.without_receipt} messages have had no receipt for {LAST_SECONDS:.0f} s.")
            time.sleep(LOOK_SECONDS)
        return said


def new_crew(target: Target, members: int) -> Crew:
    with target.client() as client:
        made = client.post(FLEETS, json={}).raise_for_status().json()
        path = f"{FLEETS}/{made['fleet_id']}/members"
        bodies = ({"name": f"m{number}", "description": "bench"} for number in range(members))
        ids = [client.post(path, json=body).raise_for_status().json()["agent_id"] for body in bodies]
    return Crew(target, made["fleet_id"], made["director"]["agent_id"], ids)
