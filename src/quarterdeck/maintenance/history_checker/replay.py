"""Replays the event log: the state of each object with attempts, and the number of its attempt, at each position."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quarterdeck.core.ids import Ref
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import EventData, Evidence
from quarterdeck.maintenance.history_checker.nouns import INVOCATION, TASK, Noun, noun_events

ATTEMPT_NOUNS = (INVOCATION, TASK)


@dataclass(slots=True)
class ReplayedObject:
    """One invocation or task at the current position of the replay."""

    noun: Noun
    state: str | None = None
    attempt: int = 0
    """The number of the running attempt, or of the last counted one."""
    is_final: bool = False
    """A task that failed or was aborted, and will not be retried automatically."""
    is_completed: bool = False
    """A task that was COMPLETED, and may have been archived since."""
    last_progress: tuple[int | None, str | None] | None = None
    """The last reported progress of the running attempt of a task."""

    @property
    def is_held(self) -> bool:
        return self.state in self.noun.held_states

    def apply(self, event: Event, data: EventData) -> None:
        if self.noun.starts_attempt(event):
            self.attempt = self.attempt if data.attempt is None else data.attempt
            self.last_progress = None
        elif self.noun.releases_attempt(event):
            self.attempt = max(0, self.attempt - 1)
        if self.state not in self.noun.final_states:
            _, self.state = self.noun.transition(event, self.state)
        if self.noun is TASK:
            self._apply_to_task(event, data)

    def _apply_to_task(self, event: Event, data: EventData) -> None:
        if event.type == "task.progressed":
            self.last_progress = (data.progress_percent, data.current_step)
        elif event.type == "task.completed":
            self.is_completed = True
        if self.state in ("FAILED", "ABORTED"):
            self.is_final = data.final
        elif self.state != "ARCHIVED":
            self.is_final = False


class Replay:
    """All objects of the given nouns up to the current position of the replay."""

    def __init__(self, evidence: Evidence, *nouns: Noun) -> None:
        self._evidence = evidence
        self._nouns = nouns
        self._objects: dict[tuple[str, str, str], ReplayedObject] = {}
        """By noun, zone and id."""

    def get(self, noun: Noun, ref: Ref) -> ReplayedObject | None:
        return self._objects.get((noun.name, *ref))

    def walk(self) -> Iterator[tuple[Event, EventData, ReplayedObject]]:
        """Yield each event with valid data, and its subject in the state before the event."""
        for noun, event, data in noun_events(self._evidence, *self._nouns):
            key = (noun.name, event.zone_id, event.subject)
            subject = self._objects.get(key)
            if subject is None:
                subject = self._objects[key] = self._initial_object(noun, event, data)
            yield event, data, subject
            subject.apply(event, data)

    def _initial_object(self, noun: Noun, event: Event, data: EventData) -> ReplayedObject:
        if self._evidence.is_log_complete or event.from_state is None:
            return ReplayedObject(noun)
        # Derive the state before the oldest stored event of the object from that event.
        attempt = (data.attempt or 0) - noun.starts_attempt(event) + noun.releases_attempt(event)
        return ReplayedObject(noun, event.from_state, attempt, is_completed=event.from_state == "COMPLETED")
