"""One checked run of calls over HTTP: into a zone and a service of its own, which nobody serves."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import msgspec

from bench import calls
from bench.asks import APPLICATION, calls as called
from bench.load import drive
from bench.observed import Traffic, check as check_answers, observe
from bench.results import Run
from bench.stage import Stage, Target

CONNECTIONS = 64
ENQUEUES = Traffic("POST /zones/{zone}/invocations", "invocation")
ENDPOINT = "http://worker.invalid/bench"
"""A name only: what is called there is fetched, or left alone."""


@dataclass(frozen=True, slots=True)
class Service:
    zone: str
    id: str


def new_service(target: Target, name: str) -> Service:
    """A service in a new zone."""
    [zone] = target.zones(name, 1)
    with target.client() as client:
        asked = {"application_id": APPLICATION, "endpoint_url": ENDPOINT}
        made = client.post(f"/zones/{zone}/agent-services", json=asked).raise_for_status()
    return Service(zone, str(made.json()["id"]))


class Enqueuing:
    def __init__(self, stage: Stage, target: Target) -> None:
        self._stage = stage
        self._target = target
        self._numbers = itertools.count(1)
        service = new_service(target, "warm")
        drive(target, called(service.zone, service.id), CONNECTIONS, stage.plan.warm_up)

    def run(self) -> Run:
        """Closed loop: so many connections, each with a call under way at any time."""
        service = new_service(self._target, f"run{next(self._numbers)}")
        self._stage.settle()
        observed = observe(self._target, ENQUEUES)
        requests = called(service.zone, service.id)
        done = drive(self._target, requests, CONNECTIONS, self._stage.plan.seconds)
        new = observe(self._target, ENQUEUES).since(observed)
        calls.check_made(calls.held(self._target, service.zone), done.count, CONNECTIONS)
        check_answers(new, done.count, CONNECTIONS)
        return msgspec.structs.replace(done, per_commit=new.commands / max(1, new.batches))
