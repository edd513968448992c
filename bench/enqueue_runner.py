"""One run of invocations over HTTP with its checks, in a new zone and a new service without a worker."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import msgspec

from bench import invocation_counts
from bench.load import run_load
from bench.request_bodies import APPLICATION, invocation_requests
from bench.results import Run
from bench.server_metrics import Traffic, check_responses, read_traffic
from bench.testbed import Target, Testbed

CONNECTIONS = 64
ENQUEUE_TRAFFIC = Traffic("POST /zones/{zone}/invocations", "invocation")
ENDPOINT = "http://worker.invalid/bench"
"""Never called: workers claim the invocations, or they stay pending."""


@dataclass(frozen=True, slots=True)
class Service:
    zone: str
    id: str


def create_service(target: Target, name: str) -> Service:
    """Create a service in a new zone."""
    [zone] = target.create_zones(name, 1)
    with target.client() as client:
        body = {"application_id": APPLICATION, "endpoint_url": ENDPOINT}
        response = client.post(f"/zones/{zone}/agent-services", json=body).raise_for_status()
    return Service(zone, str(response.json()["id"]))


class EnqueueRunner:
    def __init__(self, testbed: Testbed, target: Target) -> None:
        self._testbed = testbed
        self._target = target
        self._numbers = itertools.count(1)
        service = create_service(target, "warm")
        run_load(target, invocation_requests(service.zone, service.id), CONNECTIONS, testbed.plan.warm_up_seconds)

    def run(self) -> Run:
        """Closed loop: each connection has one call in flight at any time."""
        service = create_service(self._target, f"run{next(self._numbers)}")
        self._testbed.flush_to_disk()
        before = read_traffic(self._target, ENQUEUE_TRAFFIC)
        requests = invocation_requests(service.zone, service.id)
        run = run_load(self._target, requests, CONNECTIONS, self._testbed.plan.seconds)
        delta = read_traffic(self._target, ENQUEUE_TRAFFIC).since(before)
        invocation_counts.check_pending(
            invocation_counts.count_invocations(self._target, service.zone), run.count, CONNECTIONS
        )
        check_responses(delta, run.count, CONNECTIONS)
        return msgspec.structs.replace(run, per_commit=delta.commands / max(1, delta.batches))
