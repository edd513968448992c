"""`qd sink`: position and lag of each sink, dead entries and requeueing. Also `qd redis`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quarterdeck.bus.redis.stream_entries import AGENTS
from tests.cli.cli_support import Qd, run_qd
from tests.support.eventually import eventually_sync
from tests.support.redis import DirectRedis


@pytest.fixture(scope="module")
def direct_redis(redis_url: str) -> Iterator[DirectRedis]:
    redis = DirectRedis(redis_url)
    redis.wipe()
    yield redis
    redis.close()


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory, direct_redis: DirectRedis) -> Iterator[Qd]:
    settings = {
        "QD_REDIS_URL": direct_redis.url,
        "QD_STREAMS_HMAC_KEY": "sixteen bytes or more",
        "QD_OUTBOX_MAX_ATTEMPTS": "1",
    }
    with run_qd(tmp_path_factory.mktemp("qd-sink") / "data", **settings) as program:
        program.run("zone", "list")
        yield program


def test_list_prints_every_sink_with_its_lag(qd: Qd) -> None:
    header, redis_keys, redis_streams, webhooks = qd.run("sink", "list").splitlines()
    assert header.split() == ["NAME", "POSITION", "LAG", "LAG", "SECONDS", "WAITING", "DEAD", "LAST", "RUN", "STATE"]
    assert redis_streams.split()[0] == "redis-streams"
    assert redis_keys.split()[-1] == redis_streams.split()[-1] == webhooks.split()[-1] == "ok"
    sinks = qd.run_json("sink", "list")["items"]
    assert [(sink["name"], sink["is_configured"]) for sink in sinks] == [
        ("redis-keys", True),
        ("redis-streams", True),
        ("webhooks", True),
    ]


def test_dead_entries_are_shown_and_requeued(qd: Qd, direct_redis: DirectRedis) -> None:
    direct_redis.client.set(AGENTS, "not a stream")
    sessions = [qd.run("session", "spawn", "--app", "demo") for _ in range(2)]

    def are_dead() -> bool:
        return bool(qd.run_json("sink", "show", "redis-streams")["dead"] == 2)

    eventually_sync(are_dead, "both entries are dead")
    output = qd.run("sink", "show", "redis-streams")
    for word in (*sessions, "WRONGTYPE", AGENTS, "dead", "POS"):
        assert word in output
    direct_redis.client.delete(AGENTS)
    [newest, oldest] = qd.run_json("sink", "show", "redis-streams")["entries"]
    assert qd.run("sink", "requeue", "redis-streams", "--pos", str(oldest["pos"])) == "Requeued entries: 1."
    assert qd.run_json("sink", "requeue", "redis-streams", "--all") == {"requeued": 1}

    def have_arrived() -> bool:
        return {entry.fields["agent_session_id"] for entry in direct_redis.entries(AGENTS)} == {*sessions}

    eventually_sync(have_arrived, "both entries have arrived")
    assert newest["subject"] == sessions[1]
    assert "POS" not in qd.run("sink", "show", "redis-streams")


def test_failed_command_prints_an_error_and_sets_the_exit_code(qd: Qd) -> None:
    for words, code in (
        (("sink", "show", "no-such-sink"), 4),
        (("sink", "requeue", "no-such-sink", "--all"), 4),
        (("sink", "requeue", "redis-streams"), 2),
        (("sink", "requeue", "redis-streams", "--all", "--pos", "1"), 2),
        (("sink", "show"), 2),
        (("sink",), 2),
    ):
        result = qd(*words)
        assert result.returncode == code, (words, result.stderr)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr


def test_without_redis_only_the_webhooks_sink_exists(tmp_path_factory: pytest.TempPathFactory) -> None:
    with run_qd(tmp_path_factory.mktemp("qd-no-sink") / "data") as program:
        _, webhooks = program.run("sink", "list").splitlines()
        assert webhooks.split()[0] == "webhooks"


def test_config_show_masks_the_hmac_key(qd: Qd) -> None:
    output = qd.run("config", "show")
    assert "sixteen bytes" not in output
    assert "***" in output


def test_redis_rebuild_rewrites_the_task_keys(qd: Qd, direct_redis: DirectRedis) -> None:
    task = qd.run("task", "add", "task-1", "--type", "development")
    direct_redis.wipe()
    assert qd.run_json("redis", "rebuild")["state"] == "whole"
    assert direct_redis.client.zrange("tasks:pending:default", 0, -1) == [task]
    state, *_ = qd.run("redis", "status").splitlines()
    assert state.split() == ["state", "whole"]


def test_config_alerts_prints_prometheus_rules(qd: Qd) -> None:
    assert "alert: ValkeyAway" in qd.run("config", "alerts")
