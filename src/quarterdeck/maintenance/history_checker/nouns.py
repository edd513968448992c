"""The nouns whose states the event log records: invocations, tasks and delegations.

A noun is a row; the replay and the invariants are the same for all. The transitions implement the documentation and do
not use the components' own rules, because code that shares their bugs could not find them. A test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, Rows, decode_event_data

Transition = tuple[str | None, str | None]
"""(from, to)"""
RowState = tuple[str, str, str, int | None]
"""(zone, id, state, attempt). The attempt is None if the rows of the noun are not checked for it."""


@dataclass(frozen=True, slots=True)
class Noun:
    name: str
    """The prefix of its events."""
    row_states: Callable[[Rows], Iterator[RowState]]
    transitions: Mapping[str, frozenset[Transition]]
    """The transitions that each event may record."""
    open_states: frozenset[str]
    """Retention deletes no row in one of these states."""
    held_states: frozenset[str] = frozenset()
    """The states in which an attempt is running."""
    starts_attempt: Callable[[Event], bool] = lambda _: False
    ends_attempt: Callable[[Event], bool] = lambda _: False
    states_after: Mapping[str, str] | None = None
    """The state after each event. None: the states in the event are used, and are checked as well."""
    final_states: frozenset[str] = frozenset()
    """The replay leaves none of these states, so that each later event is reported."""
    needs_attempt: bool = False
    """Whether the data of every event has an attempt number."""
    transition_invariant: str = "story"
    """The invariant that reports forbidden transitions."""
    forbidden_text: str = "{noun} {id} was {verb}, which does not lead from {before} to {after}"
    wrong_attempt_text: str = "{type} of {id} has attempt {attempt}, but attempt {running} was running"

    def decode_data(self, event: Event) -> EventData | None:
        """The decoded data of one of its events, or None if it is malformed."""
        data = decode_event_data(event)
        return None if data is not None and self.needs_attempt and data.attempt is None else data

    def transition(self, event: Event, state: str | None) -> Transition:
        """The transition that an event records for an object in this state."""
        if self.states_after is None:
            return event.from_state, event.to_state
        return state, self.states_after.get(event.type, state)

    def releases_attempt(self, event: Event) -> bool:
        """A released attempt is not counted: the next attempt gets the same number."""
        return event.type.endswith(".released")


def noun_events(evidence: Evidence, *nouns: Noun) -> Iterator[tuple[Noun, Event, EventData]]:
    """The events of these nouns with valid data. The invariant `story` reports malformed data."""
    nouns_by_name = {noun.name: noun for noun in nouns}
    for event in evidence.log:
        noun = nouns_by_name.get(event.type.partition(".")[0])
        if noun is not None and (data := noun.decode_data(event)) is not None:
            yield noun, event, data


def _unchanged(*states: str) -> frozenset[Transition]:
    return frozenset((state, state) for state in states)


def _to_state(target: str, *states: str | None) -> frozenset[Transition]:
    return frozenset((state, target) for state in states)


def _target_states(transitions: Mapping[str, frozenset[Transition]]) -> dict[str, str]:
    return {event_type: str(after) for event_type, pairs in transitions.items() for _, after in pairs}


# -- invocations -------------------------------------------------------------------------------------------------

ENDED_INVOCATION_STATES = frozenset({"succeeded", "failed", "timed_out", "canceled", "dead"})
INVOCATION_ENDS = frozenset(f"invocation.{verb}" for verb in ("retried", "released", *ENDED_INVOCATION_STATES))
INVOCATION_TRANSITIONS: Mapping[str, frozenset[Transition]] = {
    "invocation.created": _to_state("pending", None),
    "invocation.started": _to_state("running", "pending"),
    "invocation.retried": _to_state("pending", "running"),
    "invocation.released": _to_state("pending", "running"),
    "invocation.cancel_requested": _unchanged("running"),
    **{f"invocation.{state}": _to_state(state, "running") for state in ENDED_INVOCATION_STATES},
    "invocation.canceled": _to_state("canceled", "pending", "running"),
}
INVOCATION = Noun(
    "invocation",
    lambda rows: ((row.zone_id, row.id, row.status, None) for row in rows.invocations),
    INVOCATION_TRANSITIONS,
    open_states=frozenset({"pending", "running"}),
    held_states=frozenset({"running"}),
    starts_attempt=lambda event: event.type == "invocation.started",
    ends_attempt=lambda event: event.type in INVOCATION_ENDS,
    states_after=_target_states(INVOCATION_TRANSITIONS),
    final_states=ENDED_INVOCATION_STATES,
    transition_invariant="one-holder",
    forbidden_text="{noun} {id} was {verb}, but its state was {state}",
    wrong_attempt_text="{noun} {id} was {verb} in attempt {attempt} while attempt {running} was running",
)

# -- tasks -------------------------------------------------------------------------------------------------------

HELD_TASK_STATES = frozenset({"ASSIGNED", "RUNNING"})
"""The states in which an agent holds the task."""
OPEN_TASK_STATES = frozenset({"PENDING", "PAUSED"}) | HELD_TASK_STATES
TASK = Noun(
    "task",
    lambda rows: ((row.zone_id, row.id, row.status, row.attempt) for row in rows.tasks),
    {
        # A task whose dependency has already failed is created as FAILED.
        "task.created": frozenset({(None, "PENDING"), (None, "FAILED")}),
        "task.assigned": _to_state("ASSIGNED", "PENDING"),
        "task.started": _to_state("RUNNING", "PENDING", "ASSIGNED"),
        "task.progressed": _unchanged(*HELD_TASK_STATES),
        "task.paused": _to_state("PAUSED", "PENDING", *HELD_TASK_STATES),
        "task.resumed": _to_state("PENDING", "PAUSED"),
        "task.completed": _to_state("COMPLETED", *HELD_TASK_STATES, "PAUSED"),
        "task.failed": _to_state("FAILED", *OPEN_TASK_STATES),
        "task.aborted": _to_state("ABORTED", *OPEN_TASK_STATES, "FAILED", "ABORTED"),
        "task.requeued": _to_state("PENDING", "FAILED", "ABORTED"),
        "task.released": _to_state("PENDING", *HELD_TASK_STATES),
        "task.archived": _to_state("ARCHIVED", "COMPLETED", "FAILED", "ABORTED"),
        "task.changed": _unchanged(*OPEN_TASK_STATES, "COMPLETED", "FAILED", "ABORTED"),
        "task.warned": _unchanged("RUNNING"),
        "task.unblocked": _unchanged("PENDING", "PAUSED"),
    },
    open_states=OPEN_TASK_STATES,
    held_states=HELD_TASK_STATES,
    # The attempt of an assigned task starts with the assignment.
    starts_attempt=lambda event: (
        event.type == "task.assigned" or (event.type == "task.started" and event.from_state != "ASSIGNED")
    ),
    ends_attempt=lambda event: event.from_state in HELD_TASK_STATES and event.to_state not in HELD_TASK_STATES,
    needs_attempt=True,
)

# -- delegations -------------------------------------------------------------------------------------------------

DELEGATION_TRANSITIONS: Mapping[str, frozenset[Transition]] = {
    "delegation.create": _to_state("active", None),
    "delegation.revoke": _to_state("revoked", "active"),
    "delegation.expire": _to_state("expired", "active"),
}
DELEGATION = Noun(
    "delegation",
    lambda rows: ((row.zone_id, row.id, row.status, None) for row in rows.edges),
    DELEGATION_TRANSITIONS,
    open_states=frozenset({"active"}),
    states_after=_target_states(DELEGATION_TRANSITIONS),
)
