"""What a turn asks for about what it has seen, and what launchers are told: without any I/O."""

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


def abort(task_id: str, **said: object) -> Abort:
    return build_struct(Abort, zone_id="z", id=task_id, leader_term=FENCE, **said)


def test_each_thing_seen_is_asked_for_once_under_the_term_and_with_a_chance_of_its_own() -> None:
    seen = TasksToRecover(
        timed_out=[TimedOutAttempt("z", "t1", "k1", State.RUNNING), TimedOutAttempt("z", "t2", "k2", State.ASSIGNED)],
        overdue=[OverdueAttempt("z", "t3", "k3", 0), OverdueAttempt("z", "t4", "k4", 1)],
        due=[("z", "t5")],
        dependents_pending=[("y", "t6")],
    )
    numbers = itertools.count(1)
    asked = recovery.recovery_commands(seen, FENCE, lambda: next(numbers) / 10)
    assert asked == [
        abort("t1", attempt_token="k1", reason="timeout", condition="out_of_time", jitter=0.1),
        abort("t2", attempt_token="k2", reason="launch_lost", condition="not_begun", jitter=0.2),
        Warn(zone_id="z", id="t3", leader_term=FENCE),
        abort("t4", attempt_token="k4", reason="hung", condition="hung", jitter=0.4, raises_priority=True),
        UnblockDependents(zone_id="y", id="t6", leader_term=FENCE),
        MakeAvailable(zone_id="z", id="t5", leader_term=FENCE),
    ]


def test_those_in_a_cycle_are_cut_and_those_that_wait_for_it_are_not() -> None:
    depends_on = {
        "a": ["b"], "b": ["c"], "c": ["a"], "waits": ["a"], "x": ["x"], "fine": ["done"], "p": ["q"], "q": ["p", "a"]
    }  # fmt: skip
    cut = {each.id: each.cycle for each in recovery.cycle_commands(ZONE, depends_on, FENCE)}
    assert {*cut} == {"a", "b", "c", "x", "p", "q"}
    assert cut["x"] == ("x", "x")
    assert cut["a"] == cut["b"] == cut["c"] == ("a", "b", "c", "a")


names = st.sampled_from("abcdefgh")


@given(st.dictionaries(names, st.lists(names, unique=True, max_size=4), max_size=8))
def test_exactly_those_are_cut_that_can_be_reached_from_themselves(graph: dict[str, list[str]]) -> None:
    def reaches(start: str) -> bool:
        seen: set[str] = set()
        ahead = [*graph.get(start, ())]
        while ahead:
            at = ahead.pop()
            if at == start:
                return True
            if at not in seen:
                seen.add(at)
                ahead += graph.get(at, ())
        return False

    assert {cut.id for cut in recovery.cycle_commands(ZONE, graph, None)} == {name for name in graph if reaches(name)}


# -- launching


def whole() -> FullTask:
    content = msgspec.structs.replace(CONTENT, title="A title that is longer than a label's part of it")
    return FullTask(task_row(State.ASSIGNED), content)


def test_a_launcher_is_told_the_body_of_the_seed() -> None:
    said = json.loads(launch_payload.encode_spawn_request(whole(), '{"a":1}', '{"page":2}'))
    assert said["label"] == "task:t:A title that is longer than a "
    assert (said["workspaceId"], said["agentId"], said["taskId"]) == (ZONE, "a", "t")
    assert said["context"] == {
        "taskTitle": "A title that is longer than a label's part of it",
        "taskDescription": None,
        "inputContext": {"a": 1},
        "checkpointData": {"page": 2},
    }
    assert said["attemptToken"] == "k"


@pytest.mark.parametrize(
    ("body", "key"),
    [
        (b'{"session":{"sessionKey":"s"}}', "s"), (b'{"session":{"sessionKey":"s","more":1}}', "s"),
        (b'{"session":{"sessionKey":""}}', None), (b'{"session":{"sessionKey":5}}', None), (b"{}", None), (b"", None),
        (b"null", None), (b'{"session":{"sessionKey":"a\\u0000b"}}', None), (b"\xff", None), (b"[" * 5_000, None),
        (b'{"session":{"sessionKey":"' + b"x" * 256 + b'"}}', None),
    ],
)  # fmt: skip
def test_a_gateway_names_a_session_or_has_started_none(body: bytes, key: str | None) -> None:
    assert launch_payload.parse_session_key(body) == key


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://gateway.example", True), ("http://127.0.0.1:4000", True), ("http://localhost/x", True),
        ("http://[::1]:80/", True), ("http://10.0.0.5", False), ("http://gateway.example", False),
        ("http://127.0.0.1.example", False), ("http://localhost.example", False), ("http://evil@127.0.0.1.x", False),
        ("http://127.0.0.1@evil.example", False),
    ],
)  # fmt: skip
def test_secrets_are_told_where_nobody_between_can_read_them(url: str, may: bool) -> None:
    assert launch_payload.can_send_secrets(url) is may


def test_a_process_sees_what_is_named_and_nothing_that_stands_for_the_server() -> None:
    own = {"PATH": "/bin", "HOME": "/root", "QD_SECRET_KEYS": "k", "QD_DATABASE_URL": "d"}
    seen = launch_payload.build_environment(["PATH", "QD_SECRET_KEYS", "ABSENT"], own, "token", None)
    assert seen == {"PATH": "/bin", "QD_TOKEN": "token"}


def test_of_what_a_process_says_the_end_is_kept() -> None:
    words = launch_payload.output_tail(b"x" * 50_000 + "the end\0 \u00e9".encode() + b"\xff\n")
    assert len(words) == launch_payload.TAIL_MAX + 1
    assert words.startswith("…x")
    assert words.endswith("the end\N{REPLACEMENT CHARACTER} \u00e9\N{REPLACEMENT CHARACTER}")
