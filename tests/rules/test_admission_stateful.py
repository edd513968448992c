"""Admission compared with a model that keeps no counters and scans every session each time.

The state machine keeps counters as the operations do: an admitted session raises them, an ended session lowers them,
and when a bound refuses a spawn, expired sessions are subtracted. Both must always decide the same.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import LimitReached, Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned, State
from quarterdeck.domain.sessions.rules import admission
from quarterdeck.domain.sessions.rules.admission import SPAWN, Count, CountKey, ExpiredGroup, SpawnBatchInput
from quarterdeck.domain.zones.model import Limits, ZoneAdmissionState
from tests.support.builders import NOW, ZONE, spawn_command

APPS = ("a", "b")
KEYS = (None, None, "k1", "k2")
LIMITS = st.builds(
    Limits,
    max_depth=st.integers(0, 3),
    max_children=st.integers(0, 3),
    max_tree_size=st.integers(0, 5),
    max_tree_spawns=st.integers(0, 8),
    max_concurrent=st.integers(0, 6),
    max_sessions=st.integers(0, 9),
    max_sessions_per_application=st.integers(0, 7),
)
SPAWN_FIELDS = st.tuples(
    st.integers(0, 12), st.sampled_from(APPS), st.integers(1, 6), st.sampled_from(KEYS), st.sampled_from("xy")
)
"""Parent number, application, TTL, key, digest. A parent number without a session makes a root."""


@dataclass
class ModelSession:
    """A session of the model."""

    id: str
    parent: str | None
    app: str
    expires_at: int
    ended: bool = False
    suspended: bool = False


class Model:
    """The admission rules without counters: each decision scans all sessions."""

    def __init__(self) -> None:
        self.sessions: dict[str, ModelSession] = {}
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        self.now = NOW
        self.limits = Limits()
        self.frozen = False

    def decide(self, command: Spawn) -> str:
        """The expected outcome of a command. An admitted session is added to the model."""
        if command.key and (record := self.keys.get((command.application_id, command.key))):
            digest, session_id = record
            if self.is_live(self.sessions[session_id]):
                return f"replay {session_id}" if digest == command.digest else "idempotency_key_conflict"
        if self.frozen:
            return "zone_frozen"
        parent = self.sessions.get(command.parent_id or "")
        if command.parent_id and (parent is None or not self.is_live(parent) or parent.suspended):
            return "parent_not_found"
        if bound := self.exceeded_bound(command, parent):
            return bound
        expires_at = self.now + command.ttl_seconds * 1_000
        if parent:
            expires_at = min(expires_at, parent.expires_at)
        self.sessions[command.id] = ModelSession(command.id, command.parent_id, command.application_id, expires_at)
        if command.key:
            self.keys[command.application_id, command.key] = (command.digest, command.id)
        return f"created {command.id}"

    def exceeded_bound(self, command: Spawn, parent: ModelSession | None) -> str | None:
        live, root_id = self.live_sessions(), self.root_of(parent) if parent else command.id
        same_app = [session for session in live if session.app == command.application_id]
        tree = [session for session in live if self.root_of(session) == root_id]
        ever = [session for session in self.sessions.values() if self.root_of(session) == root_id]
        if len(live) >= self.limits.max_sessions:
            return "max_sessions"
        if len(same_app) >= self.limits.max_sessions_per_application:
            return "max_sessions_per_application"
        if parent and sum(session.parent == parent.id for session in live) >= self.limits.max_children:
            return "max_children"
        if parent and self.depth(parent) >= self.limits.max_depth:
            return "max_depth"
        if len(tree) >= self.limits.max_tree_size:
            return "max_tree_size"
        if len(ever) >= self.limits.max_tree_spawns:
            return "max_tree_spawns"
        if parent and sum(session.parent is not None for session in live) >= self.limits.max_concurrent:
            return "max_concurrent"
        return None

    def is_live(self, session: ModelSession) -> bool:
        return not session.ended and session.expires_at > self.now

    def live_sessions(self) -> list[ModelSession]:
        return [session for session in self.sessions.values() if self.is_live(session)]

    def root_of(self, session: ModelSession) -> str:
        return self.root_of(self.sessions[session.parent]) if session.parent else session.id

    def depth(self, session: ModelSession) -> int:
        return self.depth(self.sessions[session.parent]) + 1 if session.parent else 0

    def subtree(self, root_id: str) -> list[str]:
        """A session and its descendants."""
        children = [session.id for session in self.sessions.values() if session.parent == root_id]
        return [root_id, *(descendant for child in children for descendant in self.subtree(child))]


class Admission(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.rows: dict[str, Session] = {}
        self.counts: dict[CountKey, Count] = {}
        self.key_records: dict[str, KeyRecord] = {}

    @initialize(limits=LIMITS)
    def set_initial_limits(self, limits: Limits) -> None:
        self.model.limits = limits

    @rule(fields=st.lists(SPAWN_FIELDS, min_size=1, max_size=6))
    def spawn(self, fields: list[tuple[int, str, int, str | None, str]]) -> None:
        present = list(self.rows)
        commands = [
            spawn_command(
                application_id=app,
                parent_id=present[-1 - parent] if parent < len(present) else None,
                ttl_seconds=ttl,
                key=key,
                digest=digest,
            )
            for parent, app, ttl, key, digest in fields
        ]
        expected = [self.model.decide(command) for command in commands]
        outcomes = self.decide_batch(commands)
        assert [outcome_text(outcome) for outcome in outcomes] == expected
        created = [outcome.session for outcome in outcomes if isinstance(outcome, Spawned) and outcome.created]
        self.store(commands, created)
        self.check_bounds(created)

    @precondition(lambda self: self.rows)
    @rule(index=st.integers(0, 50))
    def terminate_any(self, index: int) -> None:
        self.terminate(list(self.rows)[index % len(self.rows)])

    @precondition(lambda self: self.rows)
    @rule(index=st.integers(0, 50))
    def suspend_or_resume(self, index: int) -> None:
        session_id = list(self.rows)[index % len(self.rows)]
        row = self.rows[session_id]
        if row.status is not State.TERMINATED:
            suspended = row.status is State.ACTIVE
            self.rows[session_id] = msgspec.structs.replace(row, status=State.SUSPENDED if suspended else State.ACTIVE)
            self.model.sessions[session_id].suspended = suspended

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.model.now += seconds * SECOND

    @rule()
    def sweep(self) -> None:
        for session_id, row in list(self.rows.items()):
            if row.expires_at <= self.model.now:
                self.terminate(session_id)

    @rule(limits=LIMITS)
    def limits_change(self, limits: Limits) -> None:
        self.model.limits = limits

    @rule()
    def freeze_or_thaw(self) -> None:
        self.model.frozen = not self.model.frozen

    # -- the parts that the operations do

    def decide_batch(self, commands: list[Spawn]) -> list[Spawned | Problem]:
        batch_input = SpawnBatchInput(
            now=self.model.now,
            zones={ZONE: ZoneAdmissionState(self.model.limits, self.model.frozen)},
            sessions={(ZONE, session_id): row for session_id, row in self.rows.items()},
            keys={record.full_key(): record for record in self.key_records.values()},
            counts=self.counts,
        )
        outcomes = admission.admit(commands, batch_input)
        if any(isinstance(outcome, LimitReached) for outcome in outcomes):
            corrected = admission.subtract_expired(self.counts, self.expired_groups())
            outcomes = admission.admit(commands, dataclasses.replace(batch_input, counts=corrected))
        return outcomes

    def expired_groups(self) -> list[ExpiredGroup]:
        return [
            ExpiredGroup(ZONE, row.application_id, row.parent_id, row.root_id, 1)
            for row in self.rows.values()
            if row.status is not State.TERMINATED and row.expires_at <= self.model.now
        ]

    def store(self, commands: list[Spawn], created: list[Session]) -> None:
        for row in created:
            self.rows[row.id] = row
        for key, number in admission.count_sessions(created).items():
            count = self.counts.get(key, Count())
            self.counts[key] = Count(count.live + number, count.ever + number)
        created_ids = {row.id for row in created}
        for command in commands:
            if command.key and command.id in created_ids:
                record = KeyRecord(ZONE, command.application_id, SPAWN, command.key, command.digest, command.id)
                self.key_records[f"{command.application_id} {command.key}"] = record

    def terminate(self, root_id: str) -> None:
        ending = [
            self.rows[session_id]
            for session_id in self.model.subtree(root_id)
            if self.rows[session_id].status is not State.TERMINATED
        ]
        for key, number in admission.count_sessions(ending).items():
            self.counts[key] = Count(self.counts[key].live - number, self.counts[key].ever)
        for row in ending:
            for key in admission.obsolete_count_keys(row):
                self.counts.pop(key, None)
            self.rows[row.id] = msgspec.structs.replace(row, status=State.TERMINATED)
            self.model.sessions[row.id].ended = True

    # -- invariants

    def check_bounds(self, created: list[Session]) -> None:
        """After an admission no bound of the new sessions is exceeded."""
        model, limits = self.model, self.model.limits
        live = model.live_sessions()
        if created:
            assert len(live) <= limits.max_sessions
        for row in created:
            assert sum(session.app == row.application_id for session in live) <= limits.max_sessions_per_application
            assert sum(model.root_of(session) == row.root_id for session in live) <= limits.max_tree_size
            assert (
                sum(model.root_of(session) == row.root_id for session in model.sessions.values())
                <= limits.max_tree_spawns
            )
            assert row.depth == 0 or row.depth <= limits.max_depth
            if row.parent_id:
                assert sum(session.parent == row.parent_id for session in live) <= limits.max_children
                assert sum(session.parent is not None for session in live) <= limits.max_concurrent

    @invariant()
    def counts_match_the_sessions(self) -> None:
        unended = [session for session in self.model.sessions.values() if not session.ended]
        for (_, scope, key), count in self.counts.items():
            matching = [session for session in unended if self.is_counted(session, scope, key)]
            assert count.live == len(matching), (scope, key)
        assert self.counts.get((ZONE, "zone", ""), Count()).live == len(unended)

    @invariant()
    def no_child_expires_after_its_parent(self) -> None:
        for session in self.model.sessions.values():
            if session.parent:
                assert session.expires_at <= self.model.sessions[session.parent].expires_at

    def is_counted(self, session: ModelSession, scope: str, key: str) -> bool:
        return {
            "zone": True,
            "application": session.app == key,
            "tree": self.model.root_of(session) == key,
            "parent": session.parent == key,
            "concurrent": session.parent is not None,
        }[scope]


def outcome_text(outcome: Spawned | Problem) -> str:
    if isinstance(outcome, LimitReached):
        return str(outcome.members["bound"])
    if isinstance(outcome, Problem):
        return outcome.code
    return f"{'created' if outcome.created else 'replay'} {outcome.session.id}"


Admission.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestAdmissionMatchesAModelWithoutCounters = Admission.TestCase
