"""Messages over HTTP: many senders at once, one broadcast after the other, polls of much and of nothing."""

from __future__ import annotations

import contextlib

from bench.controls import control
from bench.crew import Crew, Said, new_crew
from bench.load import Requests, drive
from bench.observed import Traffic, check as check_answers, observe
from bench.plan import BenchError
from bench.results import Run
from bench.spawn import SQLITE_COMMITS, there_and_back
from bench.stage import Stage, Target
from tests.support.fleeting import acknowledged
from tests.support.keel import Side

SENDING = Traffic("POST /api/v1/fleets/{fleet}/messages", "message")
CONNECTIONS = 64
RECIPIENTS, PENDING, HISTORY = 50, 100, 100_000
ENGINES = ("PostgreSQL", "SQLite")
SENDS = f"sends, {CONNECTIONS} connections, SQLite"
Runs = dict[str, list[Run]]


def broadcasts_on(engine: str) -> str:
    return f"broadcasts to {RECIPIENTS} members, one after the other, {engine}"


def polls_on(engine: str) -> str:
    return f"polls with {PENDING} pending, one after the other, {engine}"


def empty_on(engine: str) -> str:
    return f"empty polls, nothing was ever sent, {engine}"


def history_on(stage: Stage, engine: str) -> str:
    return f"empty polls, {_history(stage):,} acknowledged before, {engine}"


def _history(stage: Stage) -> int:
    return min(HISTORY, stage.plan.rows)


def measure(stage: Stage) -> Runs:
    runs: Runs = {}
    for _ in range(stage.plan.rounds):
        with stage.fresh("SQLite") as target:
            _sends(stage, target, runs)
        for engine in ENGINES:
            with stage.fresh(engine) as target:
                runs.setdefault(broadcasts_on(engine), []).append(_broadcasts(stage, target))
                runs.setdefault(polls_on(engine), []).append(_polls(stage, target))
    for engine in ENGINES:
        _empty_polls(stage, engine, runs)
    return runs


# -- sending -----------------------------------------------------------------------------------------------------


def _sends(stage: Stage, target: Target, runs: Runs) -> None:
    warm = new_crew(target, 1)
    drive(target, warm.sends, CONNECTIONS, stage.plan.warm_up)
    warm.until_told()

    def send() -> Run:
        crew = new_crew(target, 1)
        stage.settle()
        observed = observe(target, SENDING)
        run = drive(target, crew.sends, CONNECTIONS, stage.plan.seconds)
        check_answers(observe(target, SENDING).since(observed), run.count, CONNECTIONS)
        _check(crew, run.count, CONNECTIONS, 1)
        return run

    there_and_back([(SQLITE_COMMITS, lambda: control(stage, target)), (SENDS, send)], runs)


def _broadcasts(stage: Stage, target: Target) -> Run:
    crew = new_crew(target, RECIPIENTS)
    warm = drive(target, crew.broadcasts, 1, stage.plan.warm_up)
    crew.until_told()
    stage.settle()
    run = drive(target, crew.broadcasts, 1, max(1.0, stage.plan.seconds / 2))
    said = _check(crew, (warm.count + run.count) * RECIPIENTS, 2 * RECIPIENTS, RECIPIENTS)
    if said.broadcasts * RECIPIENTS != said.messages:
        raise BenchError(f"A broadcast was not delivered to {RECIPIENTS}: there are {said}.")
    return run


def _check(crew: Crew, acknowledged: int, under_way: int, each: int) -> Said:
    """As many messages as were acknowledged, and not more than were under way besides."""
    said = crew.until_told()
    if not acknowledged <= said.messages <= acknowledged + under_way or said.messages % each:
        raise BenchError(
            f"{acknowledged} messages were acknowledged, up to {under_way} were under way, and there are {said}."
        )
    return said


# -- polling -----------------------------------------------------------------------------------------------------


def _polls(stage: Stage, target: Target) -> Run:
    crew = new_crew(target, 1)
    with target.client() as client:
        path, body = crew.sends.paths[0], crew.sends.body
        for _ in range(PENDING):
            client.post(path, content=body).raise_for_status()
        crew.until_told()
        _check_polled(target, crew.polls, PENDING)
    return _polled(stage, target, crew.polls)


def _empty_polls(stage: Stage, engine: str, runs: Runs) -> None:
    """Two servers, each with a database of its own: one in which nothing was ever said, one with a history."""
    with contextlib.ExitStack() as opened:
        crews = [new_crew(opened.enter_context(stage.fresh(engine)), 1) for _ in range(2)]
        # The server prepares its statements on a table that is empty still, as one does on its first day.
        for crew in crews:
            _check_polled(crew.target, crew.polls, 0)
        _fill(crews[1], _history(stage))
        for _ in range(stage.plan.rounds):
            there_and_back(
                [
                    (empty_on(engine), lambda: _polled(stage, crews[0].target, crews[0].polls)),
                    (history_on(stage, engine), lambda: _polled(stage, crews[1].target, crews[1].polls)),
                ],
                runs,
            )
        for crew in crews:
            _check_polled(crew.target, crew.polls, 0)


def _fill(crew: Crew, number: int) -> None:
    url = crew.target.database or f"sqlite:///{crew.target.data / 'quarterdeck.db'}"
    acknowledged(Side(url), number, crew.members[0], "default", crew.fleet_id)
    if crew.said().messages != number:
        raise BenchError(f"A fleet was given {number} messages, and holds {crew.said()}.")


def _polled(stage: Stage, target: Target, polls: Requests) -> Run:
    """One after the other, so that what is seen is how long each takes."""
    drive(target, polls, 1, stage.plan.warm_up)
    stage.settle()
    return drive(target, polls, 1, max(1.0, stage.plan.seconds / 2))


def _check_polled(target: Target, polls: Requests, expected: int) -> None:
    with target.client() as client:
        found = len(client.get(polls.paths[0]).raise_for_status().json()["messages"])
    if found != expected:
        raise BenchError(f"A poll was to find {expected} messages, and found {found}.")
