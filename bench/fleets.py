"""Fleets for the message measurements. Their members have no panes: typing notices is not measured."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench import session_counts
from bench.load import Requests
from bench.plan import BenchError
from bench.request_bodies import message_body
from bench.testbed import Target

ZONE = "default"
FLEETS_PATH = "/api/v1/fleets"
COUNTS_QUERY = """
select (select count(*) from messages where zone_id in {{zones}} and fleet_id = {fleet} and type = 'unicast'),
       (select count(*) from messages where zone_id in {{zones}} and fleet_id = {fleet} and type <> 'unicast'),
       (select count(*) from messages where zone_id in {{zones}} and fleet_id = {fleet} and type = 'unicast'
          and notified_at is null and notice is null)
"""
POLL_SECONDS, RECEIPT_TIMEOUT_SECONDS = 0.25, 120.0


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """The rows of a fleet, read in one snapshot."""

    messages: int
    broadcasts: int
    without_receipt: int


@dataclass(frozen=True, slots=True)
class BenchFleet:
    """A fleet in the default zone."""

    target: Target
    fleet_id: int
    director_id: int
    member_ids: list[int]

    @property
    def send_requests(self) -> Requests:
        """Messages from the director to the first member."""
        return self._message_requests(message_body(self.director_id, self.member_ids[0]))

    @property
    def broadcast_requests(self) -> Requests:
        return self._message_requests(message_body(self.director_id, "*"))

    def _message_requests(self, body: str) -> Requests:
        return Requests([f"{FLEETS_PATH}/{self.fleet_id}/messages"], "POST", body)

    @property
    def poll_requests(self) -> Requests:
        """Polls of the first member."""
        inbox = f"{FLEETS_PATH}/{self.fleet_id}/members/{self.member_ids[0]}/inbox"
        return Requests([f"{inbox}?status=input_required&limit=100"])

    def count_messages(self) -> MessageCounts:
        return MessageCounts(
            *session_counts.read_numbers(self.target, COUNTS_QUERY.format(fleet=self.fleet_id), [ZONE])
        )

    def wait_for_receipts(self) -> MessageCounts:
        """Returns when every message has its receipt, so that no work of one run is left for the next."""
        deadline = time.monotonic() + RECEIPT_TIMEOUT_SECONDS
        while (counts := self.count_messages()).without_receipt:
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{counts.without_receipt} messages still have no receipt after {RECEIPT_TIMEOUT_SECONDS:.0f} s."
                )
            time.sleep(POLL_SECONDS)
        return counts


def create_fleet(target: Target, member_count: int) -> BenchFleet:
    with target.client() as client:
        fleet = client.post(FLEETS_PATH, json={}).raise_for_status().json()
        path = f"{FLEETS_PATH}/{fleet['fleet_id']}/members"
        bodies = ({"name": f"m{number}", "description": "bench"} for number in range(member_count))
        member_ids = [client.post(path, json=body).raise_for_status().json()["agent_id"] for body in bodies]
    return BenchFleet(target, fleet["fleet_id"], fleet["director"]["agent_id"], member_ids)
