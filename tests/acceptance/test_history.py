"""`qd check --history`: a real run of every kind of client passes, and whatever is then put wrong, in the database or
in what clients wrote down, is found under the promise that it breaks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quarterdeck.maintenance.consistency import ConsistencyReport, check_database
from quarterdeck.maintenance.history_checker.invariants import INVARIANTS
from quarterdeck.store.migrate import sqlite_path
from tests.cli.cli_support import Qd
from tests.support.eventually import eventually
from tests.support.log_tampering import owner_transaction
from tests.support.runtime import DirectDatabase, SqlValue
from tests.support.server import Launch, Servers
from tests.support.session_plane_attack.history_writer import HistoryWriter
from tests.support.session_plane_attack.run import SHORT_INTERVALS, create_zones, run_clients, wait_until_idle
from tests.support.session_plane_attack.run_state import RunState
from tests.support.session_plane_attack.server_pool import ServerPool

CALLS = 700
OF_TASKS_ALONE = {"dependencies", "resumed"}
"""What is put wrong with tasks is put wrong after a run of theirs (`tests/chaos/test_work_plane.py`)."""
TABLES = ("events", "agent_sessions", "idempotency_keys", "agent_invocations", "delegation_edges", "cascades")


@dataclass(frozen=True)
class World:
    """A database at rest, and the history of those who worked with it."""

    url: str
    data: Path
    history: Path

    @property
    def side(self) -> DirectDatabase:
        return DirectDatabase(self.url)

    def report(self) -> ConsistencyReport:
        return check_database(self.url, [self.history])

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.history.read_text().splitlines()]

    def rows(self) -> dict[str, list[tuple[SqlValue, ...]]]:
        return {table: self.side.execute(f"select * from {table}") for table in TABLES}

    def restore(self, rows: dict[str, list[tuple[SqlValue, ...]]]) -> None:
        with owner_transaction(self.url) as (run, each):
            for table, content in rows.items():
                run(f"delete from {table}", ())
                if content:
                    each(f"insert into {table} values ({', '.join('?' for _ in content[0])})", content)


@pytest.fixture
async def scenario(servers: Servers, launch: Launch) -> World:
    server = await servers.start(launch.with_environment(**SHORT_INTERVALS))
    fleet = ServerPool(servers, [server])
    recorder = HistoryWriter(servers.directory / "history.jsonl")
    plane = RunState("a short run", fleet, recorder, ("narrow", "stopped"))
    await create_zones(fleet)

    async def enough() -> None:
        async def is_so() -> bool:
            seen = [
                recorder.count_calls("complete", 200),
                recorder.count_calls("suspend", 200),
                recorder.count_calls("revoke", 200),
            ]
            return len(recorder) >= CALLS and min(seen) >= 2 and recorder.count_calls("spawn", 429) > 0

        await eventually(is_so, f"{CALLS} calls were made", limit=90)

    await run_clients(plane, enough())
    await wait_until_idle(fleet, launch.database_url)
    assert await server.stop() == 0
    while DirectDatabase(launch.database_url).count("cascades", "finished_at is null"):
        # A session came to its time in the very moment of the stop. Whoever starts next finishes what that began.
        fleet = ServerPool(servers, [server := await servers.start(launch.with_environment(**SHORT_INTERVALS))])
        await wait_until_idle(fleet, launch.database_url)
        assert await server.stop() == 0
    return World(launch.database_url, launch.data, recorder.file)


# -- what is put wrong: each gives the promise that must find it, and does it

Damage = Callable[[World], None]


def event_of(world: World, kind: str, where: str = "1 = 1", *params: SqlValue) -> tuple[int, str, dict[str, object]]:
    """(position, subject, data) of one event of this kind."""
    rows = world.side.execute(
        f"select pos, subject, data from events where type = ? and {where} order by pos", kind, *params
    )
    assert rows, f"no {kind} where {where}"
    pos, subject, data = rows[len(rows) // 2]
    return int(str(pos)), str(subject), json.loads(str(data))


def an_event_gone(world: World) -> None:
    pos, *_ = event_of(world, "session.suspend")
    world.side.execute("delete from events where pos = ?", pos)


def a_spawn_that_never_was(world: World) -> None:
    pos, *_ = event_of(world, "session.spawn")
    world.side.execute("update events set type = 'session.note' where pos = ?", pos)


def a_key_that_jumps(world: World) -> None:
    """To a session that lives, away from another that does."""
    rows = world.side.execute(
        "select k.key, k.zone_id, k.application_id from idempotency_keys k join agent_sessions s"
        " on s.zone_id = k.zone_id and s.id = k.subject_id"
        " where k.operation = 'spawn' and s.terminated_at is null and s.zone_id = 'narrow' order by s.id"
    )
    (first, zone, application), (other, *_) = rows[0], rows[-1]
    target = world.side.scalar(
        "select subject_id from idempotency_keys where zone_id = ? and key = ? and operation = 'spawn'", zone, other
    )
    world.side.execute(
        "update idempotency_keys set subject_id = ? where zone_id = ? and application_id = ? and key = ?",
        target,
        zone,
        application,
        first,
    )


def a_limit_that_was_lower(world: World) -> None:
    _, subject, _ = event_of(world, "session.spawn", "zone_id = 'narrow'")
    [[limits]] = world.side.execute("select limits from agent_sessions where id = ?", subject)
    lower = {**json.loads(str(limits)), "max_tree_spawns": 0}
    world.side.execute("update agent_sessions set limits = ? where id = ?", json.dumps(lower), subject)


def begun_twice(world: World) -> None:
    pos, *_ = event_of(world, "invocation.started")
    world.side.execute("update events set type = 'invocation.note' where pos = ?", pos)


def a_success_that_was_a_retry(world: World) -> None:
    pos, subject, _ = event_of(world, "invocation.succeeded")
    world.side.execute("update events set type = 'invocation.retried', to_state = 'pending' where pos = ?", pos)
    world.side.execute("update agent_invocations set status = 'pending' where id = ?", subject)


def a_refusal_that_bound_its_key(world: World) -> None:
    refused = next(line for line in world.lines() if line["op"] == "spawn" and line["status"] == 429)
    asked = refused["asked"]
    assert isinstance(asked, dict)
    made = [line["asked"] for line in world.lines() if line["op"] == "spawn" and line["status"] in (200, 201, None)]
    done = {str(each["idempotency_key"]) for each in made if isinstance(each, dict)}
    assert asked["idempotency_key"] not in done
    _, subject, _ = event_of(world, "session.spawn")
    world.side.execute(
        "insert into idempotency_keys values (?, ?, 'spawn', ?, 'd', ?, 1)",
        str(refused["zone"]),
        asked["application_id"],
        asked["idempotency_key"],
        subject,
    )


def a_child_of_the_dead(world: World) -> None:
    [[subject, pos, data]] = world.side.execute(
        "select t.subject, s.pos, s.data from events t join events s on s.zone_id = t.zone_id and s.pos > t.pos"
        " where t.type = 'session.terminate' and s.type = 'session.spawn' order by t.pos, s.pos desc limit 1"
    )
    told = {**json.loads(str(data)), "parent_id": subject}
    world.side.execute("update events set data = ? where pos = ?", json.dumps(told), pos)


def authority_out_of_nothing(world: World) -> None:
    pos, _, data = event_of(world, "delegation.create")
    told = {**data, "scopes": ["everything"], "parent_edge_id": "nobody's"}
    world.side.execute("update events set data = ? where pos = ?", json.dumps(told), pos)


def an_answer_before_its_turn(world: World) -> None:
    """Two creations far from each other change places in the log."""
    rows = world.side.execute("select pos from events where type = 'session.spawn' order by pos")
    early, late = int(str(rows[0][0])), int(str(rows[-1][0]))
    for old, new in ((early, -1), (late, early), (-1, late)):
        world.side.execute("update events set pos = ? where pos = ?", new, old)


def a_row_gone(world: World) -> None:
    world.side.execute("delete from delegation_edges where status = 'revoked'")


def a_row_moved(world: World) -> None:
    world.side.execute("update agent_invocations set status = 'dead' where status = 'succeeded'")


def a_cascade_open(world: World) -> None:
    world.side.execute("update cascades set finished_at = null, settled = settled - 1")


def left_to_the_dead(world: World) -> None:
    world.side.execute(
        "update agent_invocations set status = 'running' where id = (select i.id from agent_invocations i join"
        " agent_sessions s on s.zone_id = i.zone_id and s.id = i.source_session_id where s.terminated_at is not null"
        " order by i.id limit 1)"
    )


def held_for_ever(world: World) -> None:
    """By nobody's session, so that only its deadline speaks against it."""
    world.side.execute(
        "update agent_invocations set status = 'running', deadline_at = 1 where id = (select i.id from"
        " agent_invocations i where i.source_session_id is null and i.target_session_id is null order by i.id limit 1)"
    )


DAMAGES: dict[Damage, str] = {
    an_event_gone: "story",
    a_spawn_that_never_was: "acknowledged",
    a_key_that_jumps: "one-key",
    a_limit_that_was_lower: "limits",
    begun_twice: "one-holder",
    a_success_that_was_a_retry: "stale",
    a_refusal_that_bound_its_key: "refused",
    a_child_of_the_dead: "after-the-end",
    authority_out_of_nothing: "narrowing",
    an_answer_before_its_turn: "order",
    a_row_gone: "agreement",
    a_row_moved: "agreement",
    a_cascade_open: "rest",
    left_to_the_dead: "rest",
    held_for_ever: "rest",
}


def test_a_real_run_keeps_every_promise_and_whatever_is_then_put_wrong_is_found(scenario: World) -> None:
    report = scenario.report()
    assert report.is_consistent, report.text()
    assert report.history
    assert report.history.calls["done"] >= CALLS // 3
    assert set(DAMAGES.values()) == set(INVARIANTS) - OF_TASKS_ALONE
    whole = scenario.rows()
    for damage, promise in DAMAGES.items():
        # What the log and the clients say is judged alike wherever it was read; rows are read by each engine's own.
        if not sqlite_path(scenario.url) and promise not in ("agreement", "rest"):
            continue
        damage(scenario)
        found = scenario.report().history
        assert found
        assert promise in found.counts, f"{damage.__name__}: {found.text()}"
        scenario.restore(whole)
    assert scenario.report().is_consistent
    assert_the_command_says_the_same(scenario)


def assert_the_command_says_the_same(world: World) -> None:
    qd = Qd(world.data, QD_DATABASE_URL=world.url)
    told = qd.run("check", "--history", str(world.history)).splitlines()
    assert told[-1].startswith("every promise was kept: ")
    assert qd.run_json("check", "--history", str(world.history))["history"]["findings"] == []
    for lie in (a_lost_spawn, a_line_cut_in_two):
        lying = world.history.with_name("lying.jsonl")
        lying.write_text("\n".join(lie(world)) + "\n")
        done = qd("check", "--history", str(world.history), "--history", str(lying))
        assert done.returncode == 1
        said = done.stdout + done.stderr
        assert "lying.jsonl:1" in said, said
    done = qd("check", "--json", "--history", str(world.history), "--history", str(lying.with_name("none")))
    assert (done.returncode, json.loads(done.stderr)["error"]) == (1, "invalid_history")


def a_lost_spawn(world: World) -> Iterator[str]:
    line = next(line for line in world.lines() if line["op"] == "spawn" and line["status"] == 201)
    yield json.dumps({**line, "client": "liar", "asked": {}, "answer": {"id": "never"}})


def a_line_cut_in_two(world: World) -> Iterator[str]:
    yield '{"client": "liar", '
