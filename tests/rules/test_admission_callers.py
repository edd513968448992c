"""Checks of a spawn besides the bounds: idempotency keys, parents, ownership, frozen zones, suspended callers."""

from __future__ import annotations

import dataclasses
from itertools import permutations

import msgspec
import pytest

from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import Forbidden, Frozen, KeyConflict, LimitReached, NotFound, Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned, State
from quarterdeck.domain.sessions.rules import states
from quarterdeck.domain.sessions.rules.admission import SPAWN, Count, SpawnBatchInput, admit
from quarterdeck.domain.zones.model import Limits
from tests.support.builders import APP, MAX_LIMITS, NOW, ZONE, admin, caller, session_row, spawn_command, spawn_input

FULL = msgspec.structs.replace(MAX_LIMITS, max_sessions=0)
ENDED = session_row(id="ended", status=State.TERMINATED, terminated_at=NOW - 1)
EXPIRED = session_row(id="expired", expires_at=NOW)
SUSPENDED = session_row(id="suspended", status=State.SUSPENDED, suspended_at=NOW - 1)


def expect_created(outcome: Spawned | Problem) -> Session:
    assert isinstance(outcome, Spawned), outcome
    assert outcome.created
    return outcome.session


def code(outcome: Spawned | Problem) -> str:
    return outcome.code if isinstance(outcome, Problem) else "created" if outcome.created else "replayed"


def with_key_record(batch_input: SpawnBatchInput, key: str, session: Session, digest: str = "d") -> SpawnBatchInput:
    record = KeyRecord(ZONE, APP, SPAWN, key, digest, session.id)
    sessions = {**batch_input.sessions, (session.zone_id, session.id): session}
    return dataclasses.replace(batch_input, keys={record.full_key(): record}, sessions=sessions)


# -- keys


@pytest.mark.parametrize("subject", [session_row(id="live"), SUSPENDED], ids=["active", "suspended"])
@pytest.mark.parametrize("batch_input", [spawn_input(limits=FULL), spawn_input(frozen=True)], ids=["full", "frozen"])
def test_replay_is_decided_before_every_bound(subject: Session, batch_input: SpawnBatchInput) -> None:
    [outcome] = admit(
        [spawn_command(key="k", digest="d", parent_id="gone")], with_key_record(batch_input, "k", subject)
    )
    assert outcome == Spawned(subject, created=False)


@pytest.mark.parametrize("subject", [ENDED, EXPIRED], ids=["ended", "expired"])
def test_ended_or_expired_session_frees_its_key_for_any_body(subject: Session) -> None:
    [outcome] = admit([spawn_command(key="k", digest="another")], with_key_record(spawn_input(), "k", subject))
    assert expect_created(outcome).id != subject.id


def test_key_of_a_deleted_session_is_free() -> None:
    batch_input = dataclasses.replace(with_key_record(spawn_input(), "k", session_row(id="gone")), sessions={})
    [outcome] = admit([spawn_command(key="k", digest="another")], batch_input)
    assert expect_created(outcome)


def test_same_key_with_another_body_is_a_conflict() -> None:
    [outcome] = admit(
        [spawn_command(key="k", digest="another")], with_key_record(spawn_input(), "k", session_row(id="live"))
    )
    assert isinstance(outcome, KeyConflict)
    assert (outcome.status, outcome.code) == (422, "idempotency_key_conflict")


def test_first_command_of_a_key_in_a_batch_creates_and_the_others_replay() -> None:
    outcomes = admit([spawn_command(key="k", digest="d") for _ in range(20)], spawn_input())
    first = expect_created(outcomes[0])
    assert outcomes[1:] == [Spawned(first, created=False)] * 19


def test_second_body_of_a_key_in_one_batch_is_a_conflict() -> None:
    commands = [
        spawn_command(key="k", digest="one"),
        spawn_command(key="k", digest="two"),
        spawn_command(key="k", digest="one"),
    ]
    assert [code(outcome) for outcome in admit(commands, spawn_input())] == [
        "created",
        "idempotency_key_conflict",
        "replayed",
    ]


def test_refused_spawn_stores_no_key() -> None:
    parent = session_row(id="p")
    batch_input = spawn_input(parent, limits=msgspec.structs.replace(MAX_LIMITS, max_children=0))
    commands = [spawn_command(key="k", digest="under", parent_id="p"), spawn_command(key="k", digest="root")]
    assert [code(outcome) for outcome in admit(commands, batch_input)] == ["agent_children_limit_exceeded", "created"]


def test_key_is_scoped_to_its_application_and_zone() -> None:
    admission = spawn_input().zones[ZONE]
    batch_input = SpawnBatchInput(now=NOW, zones={ZONE: admission, "y": admission})
    commands = [
        spawn_command(key="k", digest="1"),
        spawn_command(key="k", digest="2", application_id="b"),
        spawn_command("y", key="k", digest="3"),
    ]
    assert [code(outcome) for outcome in admit(commands, batch_input)] == ["created"] * 3


def test_spawns_without_a_key_are_never_replays() -> None:
    assert [code(outcome) for outcome in admit([spawn_command(), spawn_command(), spawn_command()], spawn_input())] == [
        "created"
    ] * 3


# -- parents


@pytest.mark.parametrize("parent", [ENDED, EXPIRED, SUSPENDED], ids=lambda parent: parent.id)
def test_only_an_active_session_can_be_a_parent(parent: Session) -> None:
    [outcome] = admit([spawn_command(parent_id=parent.id)], spawn_input(parent))
    assert isinstance(outcome, NotFound)
    assert outcome.code == "parent_not_found"


def test_unknown_parent_and_parent_of_another_zone_are_not_found() -> None:
    foreign = session_row(id="foreign", zone_id="y")
    for parent_id in ("unknown", "foreign"):
        [outcome] = admit([spawn_command(parent_id=parent_id)], spawn_input(foreign))
        assert code(outcome) == "parent_not_found"


def test_session_cannot_be_its_own_parent() -> None:
    own = spawn_command(id="me", parent_id="me")
    assert [code(outcome) for outcome in admit([own], spawn_input())] == ["parent_not_found"]


@pytest.mark.parametrize(
    ("spawner", "is_allowed"),
    [
        (caller("owner"), True),
        (admin(), True),
        (caller("other", "coordinator.spawn_under:owner"), True),
        (caller("other"), False),
        (caller("other", "coordinator.spawn_under:another"), False),
        (caller("other", "coordinator.spawn_for:owner"), False),
    ],
)
def test_spawn_under_a_session_requires_its_application_a_scope_or_admin(spawner: object, is_allowed: bool) -> None:
    parent = session_row(id="p", application_id="owner")
    [outcome] = admit([spawn_command(parent_id="p", caller=spawner)], spawn_input(parent))
    if is_allowed:
        assert expect_created(outcome).parent_id == "p"
    else:
        assert isinstance(outcome, Forbidden)
        assert outcome.code == "parent_ownership_required"


@pytest.mark.parametrize(("ttl", "expected"), [(10, 10), (60, 60), (61, 60), (86_400, 60)])
def test_child_never_expires_after_its_parent(ttl: int, expected: int) -> None:
    parent = session_row(id="p", expires_at=NOW + 60 * SECOND)
    [outcome] = admit([spawn_command(parent_id="p", ttl_seconds=ttl)], spawn_input(parent))
    assert expect_created(outcome).expires_at == NOW + expected * SECOND
    assert expect_created(outcome).ttl_seconds == ttl


def test_child_has_the_tree_of_its_parent_and_the_next_depth() -> None:
    root = session_row(id="r")
    middle = session_row(id="m", parent=root)
    [outcome] = admit([spawn_command(parent_id="m")], spawn_input(root, middle))
    child = expect_created(outcome)
    assert (child.parent_id, child.root_id, child.depth) == ("m", "r", 2)
    assert child.status is rules.SESSION_STATES.initial


# -- frozen zones and ended bearers


def test_frozen_zone_refuses_every_spawn_and_names_who_can_thaw_it() -> None:
    [root, child] = admit(
        [spawn_command(), spawn_command(parent_id="p")], spawn_input(session_row(id="p"), frozen=True)
    )
    for outcome in (root, child):
        assert isinstance(outcome, Frozen)
        assert (outcome.status, outcome.code) == (423, "zone_frozen")
        assert "thaws" in str(outcome.members["frees"])


@pytest.mark.parametrize("parent", [None, "sibling"])
def test_suspended_session_cannot_spawn_a_root_or_a_child(parent: str | None) -> None:
    batch_input = spawn_input(SUSPENDED, session_row(id="sibling"))
    suspended_caller = caller(session_id=SUSPENDED.id)
    [outcome] = admit([spawn_command(caller=suspended_caller, parent_id=parent)], batch_input)
    assert code(outcome) == "agent_suspended"
    agent_caller = msgspec.structs.replace(caller(), agent_id=SUSPENDED.id)
    [outcome] = admit([spawn_command(caller=agent_caller, parent_id=parent)], batch_input)
    assert code(outcome) == "agent_suspended"
    input_with_key = with_key_record(batch_input, "k", session_row(id="live"))
    [outcome] = admit([spawn_command(caller=suspended_caller, key="k", digest="d")], input_with_key)
    assert isinstance(outcome, Spawned), "an acknowledged spawn is acknowledged again"


# -- every order


def mixed_batch() -> list[Spawn]:
    """Two roots, two children of p, one child of q, and one child of an unknown parent."""
    return [
        spawn_command(),
        spawn_command(),
        spawn_command(parent_id="p"),
        spawn_command(parent_id="p"),
        spawn_command(parent_id="q"),
        spawn_command(parent_id="unknown"),
    ]


@pytest.mark.parametrize(
    ("limits", "admitted", "bounds"),
    [
        # The roots p and q are live already. The number and the bounds are the same in every order.
        (msgspec.structs.replace(MAX_LIMITS, max_sessions=5), 3, {"max_sessions"}),
        (msgspec.structs.replace(MAX_LIMITS, max_concurrent=2), 4, {"max_concurrent"}),
        (msgspec.structs.replace(MAX_LIMITS, max_children=1), 4, {"max_children"}),
        (msgspec.structs.replace(MAX_LIMITS, max_tree_size=2), 4, {"max_tree_size"}),
        (msgspec.structs.replace(MAX_LIMITS, max_tree_spawns=2), 4, {"max_tree_spawns"}),
        (msgspec.structs.replace(MAX_LIMITS, max_sessions_per_application=6), 4, {"max_sessions_per_application"}),
        (msgspec.structs.replace(MAX_LIMITS, max_depth=0), 2, {"max_depth"}),
    ],
)
def test_every_order_of_commands_admits_the_same_number_and_names_the_same_bound(
    limits: Limits, admitted: int, bounds: set[str]
) -> None:
    counts = {
        (ZONE, "zone", ""): Count(2, 2),
        (ZONE, "application", APP): Count(2, 2),
        (ZONE, "tree", "p"): Count(1, 1),
        (ZONE, "tree", "q"): Count(1, 1),
    }
    batch_input = spawn_input(session_row(id="p"), session_row(id="q"), limits=limits, counts=counts)
    for commands in permutations(mixed_batch()):
        outcomes = admit(commands, batch_input)
        assert sum(isinstance(outcome, Spawned) for outcome in outcomes) == admitted
        exceeded = {outcome.members["bound"] for outcome in outcomes if isinstance(outcome, LimitReached)}
        assert exceeded == bounds
        assert sum(code(outcome) == "parent_not_found" for outcome in outcomes) == 1
        assert is_first_come_first_served(commands, outcomes)


def is_first_come_first_served(commands: tuple[Spawn, ...], outcomes: list[Spawned | Problem]) -> bool:
    """No command is admitted after an equal one was refused."""
    refused_parents: set[str | None] = set()
    for command, outcome in zip(commands, outcomes, strict=True):
        if isinstance(outcome, Problem):
            refused_parents.add(command.parent_id)
        elif command.parent_id in refused_parents:
            return False
    return True


def test_two_bounds_are_both_kept_in_every_order_of_commands() -> None:
    limits = msgspec.structs.replace(MAX_LIMITS, max_sessions=6, max_concurrent=2)
    counts = {(ZONE, "zone", ""): Count(2, 2)}
    batch_input = spawn_input(session_row(id="p"), session_row(id="q"), limits=limits, counts=counts)
    for commands in permutations(mixed_batch()):
        admitted = [outcome.session for outcome in admit(commands, batch_input) if isinstance(outcome, Spawned)]
        assert len(admitted) == 4
        assert sum(row.parent_id is not None for row in admitted) == 2


# -- effective state


def test_expired_session_reads_as_terminated_at_its_expiry() -> None:
    effective = states.effective_session(EXPIRED, NOW)
    assert (effective.status, effective.terminated_at, effective.termination_reason) == (
        State.TERMINATED,
        NOW,
        "ttl_expired",
    )
    assert states.effective_session(EXPIRED, NOW - 1) is EXPIRED
    assert states.effective_session(ENDED, NOW + 10**9) is ENDED


@pytest.mark.parametrize(("row", "live"), [(session_row(), True), (SUSPENDED, True), (EXPIRED, False), (ENDED, False)])
def test_live_means_active_or_suspended_and_not_expired(row: Session, live: bool) -> None:
    assert rules.is_live(row, NOW) is live
