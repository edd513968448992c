"""Messages over HTTP: concurrent sends, sequential broadcasts, and polls of full and empty inboxes."""

from __future__ import annotations

import contextlib

from bench.controls import run_control
from bench.fleets import BenchFleet, MessageCounts, create_fleet
from bench.load import Requests, run_load
from bench.plan import BenchError
from bench.results import Run
from bench.server_metrics import Traffic, check_responses, read_traffic
from bench.spawn import SQLITE_COMMITS, run_forth_and_back
from bench.testbed import Target, Testbed
from tests.support.fleets import add_acknowledged_messages
from tests.support.runtime import DirectDatabase

SEND_TRAFFIC = Traffic("POST /api/v1/fleets/{fleet}/messages", "message")
CONNECTIONS = 64
RECIPIENTS, PENDING, HISTORY = 50, 100, 100_000
ENGINES = ("PostgreSQL", "SQLite")
SEND_NAME = f"sends, {CONNECTIONS} connections, SQLite"
Runs = dict[str, list[Run]]


def broadcast_name(engine: str) -> str:
    return f"broadcasts to {RECIPIENTS} members, sequential, {engine}"


def poll_name(engine: str) -> str:
    return f"polls with {PENDING} unread messages, sequential, {engine}"


def empty_poll_name(engine: str) -> str:
    return f"empty polls, no message ever sent, {engine}"


def history_poll_name(testbed: Testbed, engine: str) -> str:
    return f"empty polls, {_history_size(testbed):,} acknowledged messages, {engine}"


def _history_size(testbed: Testbed) -> int:
    return min(HISTORY, testbed.plan.rows)


def measure(testbed: Testbed) -> Runs:
    runs: Runs = {}
    for _ in range(testbed.plan.rounds):
        with testbed.start_fresh_server("SQLite") as target:
            _measure_sends(testbed, target, runs)
        for engine in ENGINES:
            with testbed.start_fresh_server(engine) as target:
                runs.setdefault(broadcast_name(engine), []).append(_measure_broadcasts(testbed, target))
                runs.setdefault(poll_name(engine), []).append(_measure_polls(testbed, target))
    for engine in ENGINES:
        _measure_empty_polls(testbed, engine, runs)
    return runs


# -- sending -----------------------------------------------------------------------------------------------------


def _measure_sends(testbed: Testbed, target: Target, runs: Runs) -> None:
    warm_up_fleet = create_fleet(target, 1)
    run_load(target, warm_up_fleet.send_requests, CONNECTIONS, testbed.plan.warm_up_seconds)
    warm_up_fleet.wait_for_receipts()

    def send() -> Run:
        fleet = create_fleet(target, 1)
        testbed.flush_to_disk()
        before = read_traffic(target, SEND_TRAFFIC)
        run = run_load(target, fleet.send_requests, CONNECTIONS, testbed.plan.seconds)
        check_responses(read_traffic(target, SEND_TRAFFIC).since(before), run.count, CONNECTIONS)
        _check_messages(fleet, run.count, CONNECTIONS, 1)
        return run

    run_forth_and_back([(SQLITE_COMMITS, lambda: run_control(testbed, target)), (SEND_NAME, send)], runs)


def _measure_broadcasts(testbed: Testbed, target: Target) -> Run:
    fleet = create_fleet(target, RECIPIENTS)
    warm_up = run_load(target, fleet.broadcast_requests, 1, testbed.plan.warm_up_seconds)
    fleet.wait_for_receipts()
    testbed.flush_to_disk()
    run = run_load(target, fleet.broadcast_requests, 1, max(1.0, testbed.plan.seconds / 2))
    counts = _check_messages(fleet, (warm_up.count + run.count) * RECIPIENTS, 2 * RECIPIENTS, RECIPIENTS)
    if counts.broadcasts * RECIPIENTS != counts.messages:
        raise BenchError(f"A broadcast was not delivered to all {RECIPIENTS} members: there are {counts}.")
    return run


def _check_messages(fleet: BenchFleet, acknowledged: int, in_flight: int, recipients: int) -> MessageCounts:
    """At least as many messages as were acknowledged, and at most those in flight in addition."""
    counts = fleet.wait_for_receipts()
    if not acknowledged <= counts.messages <= acknowledged + in_flight or counts.messages % recipients:
        raise BenchError(
            f"{acknowledged} messages were acknowledged and up to {in_flight} in flight, but there are {counts}."
        )
    return counts


# -- polling -----------------------------------------------------------------------------------------------------


def _measure_polls(testbed: Testbed, target: Target) -> Run:
    fleet = create_fleet(target, 1)
    with target.client() as client:
        path, body = fleet.send_requests.paths[0], fleet.send_requests.body
        for _ in range(PENDING):
            client.post(path, content=body).raise_for_status()
        fleet.wait_for_receipts()
        _check_poll(target, fleet.poll_requests, PENDING)
    return _run_polls(testbed, target, fleet.poll_requests)


def _measure_empty_polls(testbed: Testbed, engine: str, runs: Runs) -> None:
    """Two servers, each with its own database: one without messages, one with acknowledged messages."""
    with contextlib.ExitStack() as stack:
        fleets = [create_fleet(stack.enter_context(testbed.start_fresh_server(engine)), 1) for _ in range(2)]
        # The server prepares its statements on an empty table, as on its first day.
        for fleet in fleets:
            _check_poll(fleet.target, fleet.poll_requests, 0)
        _fill_history(fleets[1], _history_size(testbed))
        for _ in range(testbed.plan.rounds):
            run_forth_and_back(
                [
                    (empty_poll_name(engine), lambda: _run_polls(testbed, fleets[0].target, fleets[0].poll_requests)),
                    (
                        history_poll_name(testbed, engine),
                        lambda: _run_polls(testbed, fleets[1].target, fleets[1].poll_requests),
                    ),
                ],
                runs,
            )
        for fleet in fleets:
            _check_poll(fleet.target, fleet.poll_requests, 0)


def _fill_history(fleet: BenchFleet, count: int) -> None:
    url = fleet.target.database or f"sqlite:///{fleet.target.data_dir / 'quarterdeck.db'}"
    add_acknowledged_messages(DirectDatabase(url), count, fleet.member_ids[0], "default", fleet.fleet_id)
    if fleet.count_messages().messages != count:
        raise BenchError(f"{count} messages were inserted, but the fleet has {fleet.count_messages()}.")


def _run_polls(testbed: Testbed, target: Target, requests: Requests) -> Run:
    """One connection, so that the rate is the inverse of the latency."""
    run_load(target, requests, 1, testbed.plan.warm_up_seconds)
    testbed.flush_to_disk()
    return run_load(target, requests, 1, max(1.0, testbed.plan.seconds / 2))


def _check_poll(target: Target, requests: Requests, expected: int) -> None:
    with target.client() as client:
        count = len(client.get(requests.paths[0]).raise_for_status().json()["messages"])
    if count != expected:
        raise BenchError(f"A poll should have found {expected} messages, but found {count}.")
