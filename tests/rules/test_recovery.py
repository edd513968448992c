"""The recovery commands of the coordinator, and the payload, response and environment of launchers."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.domain.coordination.rules import launch_payload, recovery
from quarterdeck.domain.coordination.rules.recovery import TasksToRecover
from quarterdeck.domain.tasks.model.commands import Abort, MakeAvailable, UnblockDependents, Warn
from quarterdeck.domain.tasks.model.rows import FullTask, OverdueAttempt, State, TimedOutAttempt
from tests.support.builders import ZONE
from tests.support.structs import build_struct
from tests.support.task_rules import CONTENT, task_row

FENCE = ("coordinator", 7)


def abort(task_id: str, **fields: object) -> Abort:
    return build_struct(Abort, zone_id="z", id=task_id, leader_term=FENCE, **fields)


def test_each_task_gets_one_command_with_leader_term_and_own_jitter() -> None:
    to_recover = TasksToRecover(
        timed_out=[TimedOutAttempt("z", "t1", "k1", State.RUNNING), TimedOutAttempt("z", "t2", "k2", State.ASSIGNED)],
        overdue=[OverdueAttempt("z", "t3", "k3", 0), OverdueAttempt("z", "t4", "k4", 1)],
        due=[("z", "t5")],
        dependents_pending=[("y", "t6")],
    )
    counter = itertools.count(1)
    commands = recovery.recovery_commands(to_recover, FENCE, lambda: next(counter) / 10)
    assert commands == [
        abort("t1", attempt_token="k1", reason="timeout", condition="timed_out", jitter=0.1),
        abort("t2", attempt_token="k2", reason="launch_lost", condition="not_started", jitter=0.2),
        Warn(zone_id="z", id="t3", leader_term=FENCE),
        abort("t4", attempt_token="k4", reason="hung", condition="hung", jitter=0.4, raises_priority=True),
        UnblockDependents(zone_id="y", id="t6", leader_term=FENCE),
        MakeAvailable(zone_id="z", id="t5", leader_term=FENCE),
    ]


def test_tasks_in_a_cycle_fail_but_tasks_waiting_for_it_do_not() -> None:
    depends_on = {
        "a": ["b"], "b": ["c"], "c": ["a"], "waiting": ["a"], "x": ["x"], "fine": ["done"], "p": ["q"], "q": ["p", "a"]
    }  # fmt: skip
    cycles = {command.id: command.cycle for command in recovery.dependency_cycle_commands(ZONE, depends_on, FENCE)}
    assert {*cycles} == {"a", "b", "c", "x", "p", "q"}
    assert cycles["x"] == ("x", "x")
    assert cycles["a"] == cycles["b"] == cycles["c"] == ("a", "b", "c", "a")


names = st.sampled_from("abcdefgh")


@given(st.dictionaries(names, st.lists(names, unique=True, max_size=4), max_size=8))
def test_cycle_commands_name_exactly_the_tasks_that_reach_themselves(graph: dict[str, list[str]]) -> None:
    def reaches(start: str) -> bool:
        seen: set[str] = set()
        stack = [*graph.get(start, ())]
        while stack:
            task_id = stack.pop()
            if task_id == start:
                return True
            if task_id not in seen:
                seen.add(task_id)
                stack += graph.get(task_id, ())
        return False

    assert {command.id for command in recovery.dependency_cycle_commands(ZONE, graph, None)} == {
        name for name in graph if reaches(name)
    }


# -- launching


def assigned_task() -> FullTask:
    content = msgspec.structs.replace(CONTENT, title="A title that is longer than a label's part of it")
    return FullTask(task_row(State.ASSIGNED), content)


def test_spawn_request_has_the_published_body() -> None:
    body = json.loads(launch_payload.encode_spawn_request(assigned_task(), '{"a":1}', '{"page":2}'))
    assert body["label"] == "task:t:A title that is longer than a "
    assert (body["workspaceId"], body["agentId"], body["taskId"]) == (ZONE, "a", "t")
    assert body["context"] == {
        "taskTitle": "A title that is longer than a label's part of it",
        "taskDescription": None,
        "inputContext": {"a": 1},
        "checkpointData": {"page": 2},
    }
    assert body["attemptToken"] == "k"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"session":{"sessionKey":"s"}}', "s"), (b'{"session":{"sessionKey":"s","more":1}}', "s"),
        (b'{"session":{"sessionKey":""}}', None), (b'{"session":{"sessionKey":5}}', None), (b"{}", None), (b"", None),
        (b"null", None), (b'{"session":{"sessionKey":"a\\u0000b"}}', None), (b"\xff", None), (b"[" * 5_000, None),
        (b'{"session":{"sessionKey":"' + b"x" * 256 + b'"}}', None),
    ],
)  # fmt: skip
def test_session_key_is_parsed_or_none_if_missing_or_invalid(body: bytes, key: str | None) -> None:
    assert launch_payload.parse_session_key(body) == key


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://gateway.example", True), ("http://127.0.0.1:4000", True), ("http://localhost/x", True),
        ("http://[::1]:80/", True), ("http://10.0.0.5", False), ("http://gateway.example", False),
        ("http://127.0.0.1.example", False), ("http://localhost.example", False), ("http://evil@127.0.0.1.x", False),
        ("http://127.0.0.1@evil.example", False),
    ],
)  # fmt: skip
def test_secrets_are_sent_only_over_https_or_loopback(url: str, expected: bool) -> None:
    assert launch_payload.can_send_secrets(url) is expected


def test_environment_passes_named_variables_but_never_server_secrets() -> None:
    server_environment = {"PATH": "/bin", "HOME": "/root", "QD_SECRET_KEYS": "k", "QD_DATABASE_URL": "d"}
    environment = launch_payload.build_environment(
        ["PATH", "QD_SECRET_KEYS", "ABSENT"], server_environment, "token", None
    )
    assert environment == {"PATH": "/bin", "QD_TOKEN": "token"}


def test_output_tail_keeps_the_end_of_the_output() -> None:
    tail = launch_payload.output_tail(b"x" * 50_000 + "the end\0 \u00e9".encode() + b"\xff\n")
    assert len(tail) == launch_payload.TAIL_MAX + 1
    assert tail.startswith("…x")
    assert tail.endswith("the end\N{REPLACEMENT CHARACTER} \u00e9\N{REPLACEMENT CHARACTER}")
