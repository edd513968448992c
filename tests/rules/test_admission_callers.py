"""Who is admitted at all: keys before bounds, parents, owners, frozen zones, and bearers whose session has ended."""

from __future__ import annotations

import dataclasses
from itertools import permutations

import msgspec
import pytest

from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import Forbidden, Frozen, KeyConflict, LimitReached, NotFound, Problem, Unauthenticated
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned, State
from quarterdeck.domain.sessions.rules import SPAWN, Count, SpawnBatchInput, admit
from quarterdeck.domain.zones.model import Limits
from tests.support.builders import APP, MAX_LIMITS, NOW, ZONE, admin, caller, session_row, spawn_command, spawn_input

FULL = msgspec.structs.replace(MAX_LIMITS, max_sessions=0)
ENDED = session_row(id="ended", status=State.TERMINATED, terminated_at=NOW - 1)
EXPIRED = session_row(id="expired", expires_at=NOW)
SUSPENDED = session_row(id="asleep", status=State.SUSPENDED, suspended_at=NOW - 1)


def created(outcome: Spawned | Problem) -> Session:
    assert isinstance(outcome, Spawned), outcome
    assert outcome.created
    return outcome.session


def code(outcome: Spawned | Problem) -> str:
    return outcome.code if isinstance(outcome, Problem) else "created" if outcome.created else "replayed"


def bound_to(facts: SpawnBatchInput, key: str, subject: Session, digest: str = "d") -> SpawnBatchInput:
    binding = KeyRecord(ZONE, APP, SPAWN, key, digest, subject.id)
    sessions = {**facts.sessions, (subject.zone_id, subject.id): subject}
    return dataclasses.replace(facts, keys={binding.scope(): binding}, sessions=sessions)


# -- keys


@pytest.mark.parametrize("subject", [session_row(id="live"), SUSPENDED], ids=["active", "suspended"])
@pytest.mark.parametrize("facts", [spawn_input(limits=FULL), spawn_input(frozen=True)], ids=["full", "frozen"])
def test_a_replay_is_decided_before_every_bound(subject: Session, facts: SpawnBatchInput) -> None:
    [outcome] = admit([spawn_command(key="k", digest="d", parent_id="gone")], bound_to(facts, "k", subject))
    assert outcome == Spawned(subject, created=False)


@pytest.mark.parametrize("subject", [ENDED, EXPIRED], ids=["ended", "expired"])
def test_a_session_that_has_ended_or_expired_frees_its_key_for_any_body(subject: Session) -> None:
    [outcome] = admit([spawn_command(key="k", digest="another")], bound_to(spawn_input(), "k", subject))
    assert created(outcome).id != subject.id


def test_a_key_whose_session_is_gone_is_free() -> None:
    facts = dataclasses.replace(bound_to(spawn_input(), "k", session_row(id="gone")), sessions={})
    [outcome] = admit([spawn_command(key="k", digest="another")], facts)
    assert created(outcome)


def test_the_same_key_with_another_body_is_a_conflict_and_admits_nothing() -> None:
    [outcome] = admit([spawn_command(key="k", digest="another")], bound_to(spawn_input(), "k", session_row(id="live")))
    assert isinstance(outcome, KeyConflict)
    assert (outcome.status, outcome.code) == (422, "idempotency_key_conflict")


def test_of_one_key_in_one_batch_the_first_creates_and_the_others_are_shown_it() -> None:
    outcomes = admit([spawn_command(key="k", digest="d") for _ in range(20)], spawn_input())
    first = created(outcomes[0])
    assert outcomes[1:] == [Spawned(first, created=False)] * 19


def test_of_one_key_with_two_bodies_in_one_batch_the_second_body_conflicts() -> None:
    asks = [
        spawn_command(key="k", digest="one"),
        spawn_command(key="k", digest="two"),
        spawn_command(key="k", digest="one"),
    ]
    assert [code(outcome) for outcome in admit(asks, spawn_input())] == [
        "created",
        "idempotency_key_conflict",
        "replayed",
    ]


def test_a_refusal_binds_no_key() -> None:
    parent = session_row(id="p")
    facts = spawn_input(parent, limits=msgspec.structs.replace(MAX_LIMITS, max_children=0))
    asks = [spawn_command(key="k", digest="under", parent_id="p"), spawn_command(key="k", digest="root")]
    assert [code(outcome) for outcome in admit(asks, facts)] == ["agent_children_limit_exceeded", "created"]


def test_a_key_belongs_to_its_application_and_its_zone() -> None:
    terms = spawn_input().zones[ZONE]
    facts = SpawnBatchInput(now=NOW, zones={ZONE: terms, "y": terms})
    asks = [
        spawn_command(key="k", digest="1"),
        spawn_command(key="k", digest="2", application_id="b"),
        spawn_command("y", key="k", digest="3"),
    ]
    assert [code(outcome) for outcome in admit(asks, facts)] == ["created"] * 3


def test_spawns_without_a_key_are_never_replays() -> None:
    assert [code(outcome) for outcome in admit([spawn_command(), spawn_command(), spawn_command()], spawn_input())] == [
        "created"
    ] * 3


# -- parents


@pytest.mark.parametrize("parent", [ENDED, EXPIRED, SUSPENDED], ids=lambda parent: parent.id)
def test_only_an_active_session_can_parent(parent: Session) -> None:
    [outcome] = admit([spawn_command(parent_id=parent.id)], spawn_input(parent))
    assert isinstance(outcome, NotFound)
    assert outcome.code == "parent_not_found"


def test_an_unknown_parent_and_another_zones_parent_are_not_found() -> None:
    foreign = session_row(id="foreign", zone_id="y")
    for parent_id in ("nobody", "foreign"):
        [outcome] = admit([spawn_command(parent_id=parent_id)], spawn_input(foreign))
        assert code(outcome) == "parent_not_found"


def test_a_session_cannot_be_its_own_ancestor() -> None:
    own = spawn_command(id="me", parent_id="me")
    assert [code(outcome) for outcome in admit([own], spawn_input())] == ["parent_not_found"]


@pytest.mark.parametrize(
    ("who", "may"),
    [
        (caller("owner"), True),
        (admin(), True),
        (caller("other", "coordinator.spawn_under:owner"), True),
        (caller("other"), False),
        (caller("other", "coordinator.spawn_under:another"), False),
        (caller("other", "coordinator.spawn_for:owner"), False),
    ],
)
def test_spawning_under_a_session_needs_power_over_its_application(who: object, may: bool) -> None:
    parent = session_row(id="p", application_id="owner")
    [outcome] = admit([spawn_command(parent_id="p", caller=who)], spawn_input(parent))
    if may:
        assert created(outcome).parent_id == "p"
    else:
        assert isinstance(outcome, Forbidden)
        assert outcome.code == "parent_ownership_required"


@pytest.mark.parametrize(("left", "lives"), [(10, 10), (60, 60), (61, 60), (86_400, 60)])
def test_a_child_never_outlives_its_parent(left: int, lives: int) -> None:
    parent = session_row(id="p", expires_at=NOW + 60 * SECOND)
    [outcome] = admit([spawn_command(parent_id="p", ttl_seconds=left)], spawn_input(parent))
    assert created(outcome).expires_at == NOW + lives * SECOND
    assert created(outcome).ttl_seconds == left


def test_a_child_stands_below_its_parent_in_the_same_tree() -> None:
    root = session_row(id="r")
    middle = session_row(id="m", parent=root)
    [outcome] = admit([spawn_command(parent_id="m")], spawn_input(root, middle))
    child = created(outcome)
    assert (child.parent_id, child.root_id, child.depth) == ("m", "r", 2)
    assert child.status is rules.SESSION.initial


# -- frozen zones and ended bearers


def test_a_frozen_zone_admits_nobody_and_says_who_can_thaw_it() -> None:
    [root, child] = admit(
        [spawn_command(), spawn_command(parent_id="p")], spawn_input(session_row(id="p"), frozen=True)
    )
    for outcome in (root, child):
        assert isinstance(outcome, Frozen)
        assert (outcome.status, outcome.code) == (423, "zone_frozen")
        assert "thaws" in str(outcome.members["frees"])


@pytest.mark.parametrize("bearer", ["ended", "expired", "unknown"])
def test_a_token_of_a_session_that_has_ended_is_no_token_even_for_a_replay(bearer: str) -> None:
    facts = bound_to(spawn_input(ENDED, EXPIRED), "k", session_row(id="live"))
    who = caller(session_id=bearer)
    [outcome] = admit([spawn_command(caller=who, key="k", digest="d")], facts)
    assert isinstance(outcome, Unauthenticated)
    assert outcome.code == "session_ended"


def test_a_token_of_a_living_session_is_good() -> None:
    bearer = session_row(id="live")
    [outcome] = admit([spawn_command(caller=caller(session_id=bearer.id))], spawn_input(bearer))
    assert created(outcome)


@pytest.mark.parametrize("parent", [None, "sibling"])
def test_a_suspended_session_spawns_nothing_neither_a_root_nor_under_another(parent: str | None) -> None:
    facts = spawn_input(SUSPENDED, session_row(id="sibling"))
    asleep = caller(session_id=SUSPENDED.id)
    [outcome] = admit([spawn_command(caller=asleep, parent_id=parent)], facts)
    assert code(outcome) == "agent_suspended"
    by_agent = msgspec.structs.replace(caller(), agent_id=SUSPENDED.id)
    [outcome] = admit([spawn_command(caller=by_agent, parent_id=parent)], facts)
    assert code(outcome) == "agent_suspended"
    known_key = bound_to(facts, "k", session_row(id="live"))
    [outcome] = admit([spawn_command(caller=asleep, key="k", digest="d")], known_key)
    assert isinstance(outcome, Spawned), "what was acknowledged is so again"


# -- every order


def mixed_batch() -> list[Spawn]:
    """Two roots, two children of p, one child of q, and one of nobody."""
    return [
        spawn_command(),
        spawn_command(),
        spawn_command(parent_id="p"),
        spawn_command(parent_id="p"),
        spawn_command(parent_id="q"),
        spawn_command(parent_id="nobody"),
    ]


@pytest.mark.parametrize(
    ("limits", "admitted", "bounds"),
    [
        # Live already: p and q, roots. Whatever the order, so many get in, and only these bounds are named.
        (msgspec.structs.replace(MAX_LIMITS, max_sessions=5), 3, {"max_sessions"}),
        (msgspec.structs.replace(MAX_LIMITS, max_concurrent=2), 4, {"max_concurrent"}),
        (msgspec.structs.replace(MAX_LIMITS, max_children=1), 4, {"max_children"}),
        (msgspec.structs.replace(MAX_LIMITS, max_tree_size=2), 4, {"max_tree_size"}),
        (msgspec.structs.replace(MAX_LIMITS, max_tree_spawns=2), 4, {"max_tree_spawns"}),
        (msgspec.structs.replace(MAX_LIMITS, max_sessions_per_application=6), 4, {"max_sessions_per_application"}),
        (msgspec.structs.replace(MAX_LIMITS, max_depth=0), 2, {"max_depth"}),
    ],
)
def test_in_every_order_of_asks_the_same_number_is_admitted_and_the_right_bound_is_named(
    limits: Limits, admitted: int, bounds: set[str]
) -> None:
    counts = {
        (ZONE, "zone", ""): Count(2, 2),
        (ZONE, "application", APP): Count(2, 2),
        (ZONE, "tree", "p"): Count(1, 1),
        (ZONE, "tree", "q"): Count(1, 1),
    }
    facts = spawn_input(session_row(id="p"), session_row(id="q"), limits=limits, counts=counts)
    for asks in permutations(mixed_batch()):
        outcomes = admit(asks, facts)
        assert sum(isinstance(outcome, Spawned) for outcome in outcomes) == admitted
        named = {outcome.members["bound"] for outcome in outcomes if isinstance(outcome, LimitReached)}
        assert named == bounds
        assert sum(code(outcome) == "parent_not_found" for outcome in outcomes) == 1
        assert first_come_first_served(asks, outcomes)


def first_come_first_served(asks: tuple[Spawn, ...], outcomes: list[Spawned | Problem]) -> bool:
    """Of two asks alike, never is the later admitted and the earlier refused."""
    turned_away: set[str | None] = set()
    for asked, outcome in zip(asks, outcomes, strict=True):
        if isinstance(outcome, Problem):
            turned_away.add(asked.parent_id)
        elif asked.parent_id in turned_away:
            return False
    return True


def test_two_bounds_at_once_admit_no_more_than_both_allow_in_every_order() -> None:
    limits = msgspec.structs.replace(MAX_LIMITS, max_sessions=6, max_concurrent=2)
    counts = {(ZONE, "zone", ""): Count(2, 2)}
    facts = spawn_input(session_row(id="p"), session_row(id="q"), limits=limits, counts=counts)
    for asks in permutations(mixed_batch()):
        made = [outcome.session for outcome in admit(asks, facts) if isinstance(outcome, Spawned)]
        assert len(made) == 4
        assert sum(row.parent_id is not None for row in made) == 2


# -- as it reads


def test_what_has_expired_reads_as_terminated_at_the_moment_it_expired() -> None:
    read = rules.effective_session(EXPIRED, NOW)
    assert (read.status, read.terminated_at, read.termination_reason) == (State.TERMINATED, NOW, "ttl_expired")
    assert rules.effective_session(EXPIRED, NOW - 1) is EXPIRED
    assert rules.effective_session(ENDED, NOW + 10**9) is ENDED


@pytest.mark.parametrize(("row", "live"), [(session_row(), True), (SUSPENDED, True), (EXPIRED, False), (ENDED, False)])
def test_live_means_active_or_suspended_and_not_expired(row: Session, live: bool) -> None:
    assert rules.is_live(row, NOW) is live
