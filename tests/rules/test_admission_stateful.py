"""Admission against a plain model that keeps no counts: it looks at every session it has ever seen, each time.

The machine keeps counters as the operations do (raised by what is admitted, lowered by what ends, corrected by what
has expired when a bound refuses). The model knows nothing of counters. They must never disagree.
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
from quarterdeck.domain.sessions import rules
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned, State
from quarterdeck.domain.sessions.rules import SPAWN, Count, CountKey, ExpiredGroup, SpawnBatchInput
from quarterdeck.domain.zones.model import Limits, ZoneAdmission
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
WISH = st.tuples(
    st.integers(0, 12), st.sampled_from(APPS), st.integers(1, 6), st.sampled_from(KEYS), st.sampled_from("xy")
)
"""(which parent, application, ttl, key, digest); a parent beyond those there are is none: a root."""


@dataclass
class Seen:
    """A session as the model remembers it."""

    id: str
    parent: str | None
    app: str
    expires_at: int
    ended: bool = False
    asleep: bool = False


class Model:
    """The contract's sentences, one by one, by looking at everything."""

    def __init__(self) -> None:
        self.seen: dict[str, Seen] = {}
        self.keys: dict[tuple[str, str], tuple[str, str]] = {}
        self.now = NOW
        self.limits = Limits()
        self.frozen = False

    def decide(self, asked: Spawn) -> str:
        """The word for what must become of an ask, and, if it is admitted, the memory of it."""
        if asked.key and (bound := self.keys.get((asked.application_id, asked.key))):
            digest, subject = bound
            if self.lives(self.seen[subject]):
                return f"replay {subject}" if digest == asked.digest else "idempotency_key_conflict"
        if self.frozen:
            return "zone_frozen"
        parent = self.seen.get(asked.parent_id or "")
        if asked.parent_id and (parent is None or not self.lives(parent) or parent.asleep):
            return "parent_not_found"
        if full := self.full(asked, parent):
            return full
        expires_at = self.now + asked.ttl_seconds * 1_000
        if parent:
            expires_at = min(expires_at, parent.expires_at)
        self.seen[asked.id] = Seen(asked.id, asked.parent_id, asked.application_id, expires_at)
        if asked.key:
            self.keys[asked.application_id, asked.key] = (asked.digest, asked.id)
        return f"made {asked.id}"

    def full(self, asked: Spawn, parent: Seen | None) -> str | None:
        living, top = self.living(), self.top(parent) if parent else asked.id
        same_app = [one for one in living if one.app == asked.application_id]
        tree = [one for one in living if self.top(one) == top]
        ever = [one for one in self.seen.values() if self.top(one) == top]
        if len(living) >= self.limits.max_sessions:
            return "max_sessions"
        if len(same_app) >= self.limits.max_sessions_per_application:
            return "max_sessions_per_application"
        if parent and sum(one.parent == parent.id for one in living) >= self.limits.max_children:
            return "max_children"
        if parent and self.depth(parent) >= self.limits.max_depth:
            return "max_depth"
        if len(tree) >= self.limits.max_tree_size:
            return "max_tree_size"
        if len(ever) >= self.limits.max_tree_spawns:
            return "max_tree_spawns"
        if parent and sum(one.parent is not None for one in living) >= self.limits.max_concurrent:
            return "max_concurrent"
        return None

    def lives(self, one: Seen) -> bool:
        return not one.ended and one.expires_at > self.now

    def living(self) -> list[Seen]:
        return [one for one in self.seen.values() if self.lives(one)]

    def top(self, one: Seen) -> str:
        return self.top(self.seen[one.parent]) if one.parent else one.id

    def depth(self, one: Seen) -> int:
        return self.depth(self.seen[one.parent]) + 1 if one.parent else 0

    def below(self, top: str) -> list[str]:
        """A session and everything under it."""
        children = [one.id for one in self.seen.values() if one.parent == top]
        return [top, *(found for child in children for found in self.below(child))]


class Admission(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.rows: dict[str, Session] = {}
        self.counts: dict[CountKey, Count] = {}
        self.bindings: dict[str, KeyRecord] = {}

    @initialize(limits=LIMITS)
    def begin(self, limits: Limits) -> None:
        self.model.limits = limits

    @rule(wishes=st.lists(WISH, min_size=1, max_size=6))
    def spawn(self, wishes: list[tuple[int, str, int, str | None, str]]) -> None:
        present = list(self.rows)
        asks = [
            spawn_command(
                application_id=app,
                parent_id=present[-1 - parent] if parent < len(present) else None,
                ttl_seconds=ttl,
                key=key,
                digest=digest,
            )
            for parent, app, ttl, key, digest in wishes
        ]
        expected = [self.model.decide(asked) for asked in asks]
        outcomes = self.decided(asks)
        assert [word(outcome) for outcome in outcomes] == expected
        made = [outcome.session for outcome in outcomes if isinstance(outcome, Spawned) and outcome.created]
        self.enter(asks, made)
        self.check_bounds(made)

    @precondition(lambda self: self.rows)
    @rule(which=st.integers(0, 50))
    def end(self, which: int) -> None:
        self.finish(list(self.rows)[which % len(self.rows)])

    @precondition(lambda self: self.rows)
    @rule(which=st.integers(0, 50))
    def suspend_or_resume(self, which: int) -> None:
        own = list(self.rows)[which % len(self.rows)]
        row = self.rows[own]
        if row.status is not State.TERMINATED:
            asleep = row.status is State.ACTIVE
            self.rows[own] = msgspec.structs.replace(row, status=State.SUSPENDED if asleep else State.ACTIVE)
            self.model.seen[own].asleep = asleep

    @rule(seconds=st.integers(1, 4))
    def time_passes(self, seconds: int) -> None:
        self.model.now += seconds * SECOND

    @rule()
    def sweep(self) -> None:
        for own, row in list(self.rows.items()):
            if row.expires_at <= self.model.now:
                self.finish(own)

    @rule(limits=LIMITS)
    def limits_change(self, limits: Limits) -> None:
        self.model.limits = limits

    @rule()
    def freeze_or_thaw(self) -> None:
        self.model.frozen = not self.model.frozen

    # -- what the operations do around the rules

    def decided(self, asks: list[Spawn]) -> list[Spawned | Problem]:
        facts = SpawnBatchInput(
            now=self.model.now,
            zones={ZONE: ZoneAdmission(self.model.limits, self.model.frozen)},
            sessions={(ZONE, own): row for own, row in self.rows.items()},
            keys={binding.scope(): binding for binding in self.bindings.values()},
            counts=self.counts,
        )
        outcomes = rules.admit(asks, facts)
        if any(isinstance(outcome, LimitReached) for outcome in outcomes):
            corrected = rules.subtract_expired(self.counts, self.unswept())
            outcomes = rules.admit(asks, dataclasses.replace(facts, counts=corrected))
        return outcomes

    def unswept(self) -> list[ExpiredGroup]:
        return [
            ExpiredGroup(ZONE, row.application_id, row.parent_id, row.root_id, 1)
            for row in self.rows.values()
            if row.status is not State.TERMINATED and row.expires_at <= self.model.now
        ]

    def enter(self, asks: list[Spawn], made: list[Session]) -> None:
        for row in made:
            self.rows[row.id] = row
        for key, number in rules.count_sessions(made).items():
            known = self.counts.get(key, Count())
            self.counts[key] = Count(known.live + number, known.ever + number)
        created = {row.id for row in made}
        for asked in asks:
            if asked.key and asked.id in created:
                binding = KeyRecord(ZONE, asked.application_id, SPAWN, asked.key, asked.digest, asked.id)
                self.bindings[f"{asked.application_id} {asked.key}"] = binding

    def finish(self, top: str) -> None:
        ending = [self.rows[own] for own in self.model.below(top) if self.rows[own].status is not State.TERMINATED]
        for key, number in rules.count_sessions(ending).items():
            self.counts[key] = Count(self.counts[key].live - number, self.counts[key].ever)
        for row in ending:
            for key in rules.obsolete_count_keys(row):
                self.counts.pop(key, None)
            self.rows[row.id] = msgspec.structs.replace(row, status=State.TERMINATED)
            self.model.seen[row.id].ended = True

    # -- what must hold

    def check_bounds(self, made: list[Session]) -> None:
        """Wherever a session was let in, no bound is exceeded afterwards."""
        model, limits = self.model, self.model.limits
        living = model.living()
        if made:
            assert len(living) <= limits.max_sessions
        for row in made:
            assert sum(one.app == row.application_id for one in living) <= limits.max_sessions_per_application
            assert sum(model.top(one) == row.root_id for one in living) <= limits.max_tree_size
            assert sum(model.top(one) == row.root_id for one in model.seen.values()) <= limits.max_tree_spawns
            assert row.depth == 0 or row.depth <= limits.max_depth
            if row.parent_id:
                assert sum(one.parent == row.parent_id for one in living) <= limits.max_children
                assert sum(one.parent is not None for one in living) <= limits.max_concurrent

    @invariant()
    def counts_are_what_the_rows_say(self) -> None:
        unended = [one for one in self.model.seen.values() if not one.ended]
        for (_, scope, key), count in self.counts.items():
            counted = [one for one in unended if self.is_in(one, scope, key)]
            assert count.live == len(counted), (scope, key)
        assert self.counts.get((ZONE, "zone", ""), Count()).live == len(unended)

    @invariant()
    def no_child_outlives_its_parent(self) -> None:
        for one in self.model.seen.values():
            if one.parent:
                assert one.expires_at <= self.model.seen[one.parent].expires_at

    def is_in(self, one: Seen, scope: str, key: str) -> bool:
        return {
            "zone": True,
            "application": one.app == key,
            "tree": self.model.top(one) == key,
            "parent": one.parent == key,
            "concurrent": one.parent is not None,
        }[scope]


def word(outcome: Spawned | Problem) -> str:
    if isinstance(outcome, LimitReached):
        return str(outcome.members["bound"])
    if isinstance(outcome, Problem):
        return outcome.code
    return f"{'made' if outcome.created else 'replay'} {outcome.session.id}"


Admission.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestAdmissionAgreesWithAModelThatKeepsNoCounts = Admission.TestCase
