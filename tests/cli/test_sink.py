"""`qd sink`: how far what is told to Redis has come, what was given up, and trying it again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quarterdeck.bus.redis.stream_entries import AGENTS
from tests.cli.cli_support import Qd
from tests.support.eventually import eventually_sync
from tests.support.redis import DirectRedis


@pytest.fixture(scope="module")
def direct_redis(redis_url: str) -> Iterator[DirectRedis]:
    looking = DirectRedis(redis_url)
    looking.wipe()
    yield looking
    looking.close()


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory, direct_redis: DirectRedis) -> Iterator[Qd]:
    told = {
        "QD_REDIS_URL": direct_redis.url,
        "QD_STREAMS_HMAC_KEY": "sixteen bytes or more",
        "QD_OUTBOX_MAX_ATTEMPTS": "1",
    }
    program = Qd(tmp_path_factory.mktemp("qd-sink") / "data", **told)
    program.run("zone", "list")
    yield program
    program.end_server()


def test_list_shows_every_sink_and_how_far_behind_it_is(qd: Qd) -> None:
    heads, keys, row, own = qd.run("sink", "list").splitlines()
    assert heads.split() == ["NAME", "POSITION", "BEHIND", "SECONDS", "WAITING", "DEAD", "RUN", "STATE"]
    assert row.split()[0] == "redis-streams"
    assert keys.split()[-1] == row.split()[-1] == own.split()[-1] == "ok"
    sinks = qd.run_json("sink", "list")["items"]
    assert [(sink["name"], sink["is_configured"]) for sink in sinks] == [
        ("redis-keys", True),
        ("redis-streams", True),
        ("webhooks", True),
    ]


def test_what_was_given_up_is_shown_and_requeued(qd: Qd, direct_redis: DirectRedis) -> None:
    direct_redis.client.set(AGENTS, "in the way")
    sessions = [qd.run("session", "spawn", "--app", "demo") for _ in range(2)]

    def are_dead() -> bool:
        return bool(qd.run_json("sink", "show", "redis-streams")["dead"] == 2)

    eventually_sync(are_dead, "both entries were dead")
    shown = qd.run("sink", "show", "redis-streams")
    for word in (*sessions, "WRONGTYPE", AGENTS, "dead", "POS"):
        assert word in shown
    direct_redis.client.delete(AGENTS)
    [newest, oldest] = qd.run_json("sink", "show", "redis-streams")["entries"]
    assert qd.run("sink", "requeue", "redis-streams", "--pos", str(oldest["pos"])) == "1 are tried again"
    assert qd.run_json("sink", "requeue", "redis-streams", "--all") == {"requeued": 1}

    def have_arrived() -> bool:
        return {entry.fields["agent_session_id"] for entry in direct_redis.entries(AGENTS)} == {*sessions}

    eventually_sync(have_arrived, "both entries had arrived")
    assert newest["subject"] == sessions[1]
    assert "POS" not in qd.run("sink", "show", "redis-streams")


def test_what_cannot_be_is_a_sentence_and_an_exit_code(qd: Qd) -> None:
    for words, code in (
        (("sink", "show", "nobody"), 4),
        (("sink", "requeue", "nobody", "--all"), 4),
        (("sink", "requeue", "redis-streams"), 2),
        (("sink", "requeue", "redis-streams", "--all", "--pos", "1"), 2),
        (("sink", "show"), 2),
        (("sink",), 2),
    ):
        done = qd(*words)
        assert done.returncode == code, (words, done.stderr)
        assert done.stdout == ""
        assert "Traceback" not in done.stderr


def test_without_redis_there_is_the_sink_of_webhooks_alone(tmp_path_factory: pytest.TempPathFactory) -> None:
    program = Qd(tmp_path_factory.mktemp("qd-no-sink") / "data")
    try:
        _, own = program.run("sink", "list").splitlines()
        assert own.split()[0] == "webhooks"
    finally:
        program.end_server()


def test_the_key_is_not_shown(qd: Qd) -> None:
    shown = qd.run("config", "show")
    assert "sixteen bytes" not in shown
    assert "***" in shown


def test_the_keys_of_tasks_are_written_anew_on_demand(qd: Qd, direct_redis: DirectRedis) -> None:
    task = qd.run("task", "add", "something", "--type", "development")
    direct_redis.wipe()
    assert qd.run_json("redis", "rebuild")["state"] == "whole"
    assert direct_redis.client.zrange("tasks:pending:default", 0, -1) == [task]
    state, *_ = qd.run("redis", "status").splitlines()
    assert state.split() == ["state", "whole"]


def test_the_alert_rules_are_printed_for_whoever_runs_prometheus(qd: Qd) -> None:
    assert "alert: ValkeyAway" in qd.run("config", "alerts")
