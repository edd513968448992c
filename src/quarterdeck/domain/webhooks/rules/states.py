"""The life of a delivery: its states, when the next attempt is due, and what an answer means.

| what came of an attempt                                | is                                                |
|---------------------------------------------------------|---------------------------------------------------|
| 2xx                                                     | delivered                                         |
| 410                                                     | failed, and the endpoint is disabled              |
| any other status, an answer that cannot be read         | a failure: the next attempt, or the end           |
| no answer, an address that is not called                | likewise                                          |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

from quarterdeck.core.clock import DAY, MINUTE, SECOND, Millis
from quarterdeck.core.state_machine import Machine
from quarterdeck.domain.webhooks.model import Delivery, Endpoint, Report, State, Verb, Why
from quarterdeck.domain.webhooks.rules.payloads import Message

DELIVERY: Machine[State, Verb] = Machine(
    "delivery",
    State,
    State.PENDING,
    {
        Verb.DELIVER: {State.PENDING: State.DELIVERED},
        Verb.RETRY: {State.PENDING: State.PENDING},
        Verb.GIVE_UP: {State.PENDING: State.FAILED},
        Verb.REPLAY: {State.PENDING: State.PENDING, State.DELIVERED: State.PENDING, State.FAILED: State.PENDING},
    },
)
HOUR = 60 * MINUTE
GONE = 410
BOTH_SIGN_FOR = DAY
WAIT_MAX = DAY
"""An endpoint may ask for so long a pause, and no longer."""
ENDPOINT_DISABLED = "the endpoint hears of nothing any more"
_replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pauses after the first, second, … failure; after one more than there are pauses, it has failed."""

    pauses: Sequence[Millis] = (
        5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR,
    )  # fmt: skip
    jitter: float = 0.1
    """The share of a pause that chance may add, so that what failed together does not come again together."""

    def pause(self, attempt: int, chance: float) -> Millis | None:
        """How long to wait after the attempt numbered so (from 1) failed; None if it was the last."""
        if attempt > len(self.pauses):
            return None
        return round(self.pauses[attempt - 1] * (1 + self.jitter * chance))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what fails is borne."""

    schedule: Schedule
    failing_ms: Millis
    """For how long an endpoint may fail."""


def made(endpoint: Endpoint, message: Message, source: tuple[str, int, str | None], now: Millis) -> Delivery:
    """A delivery to an endpoint; `source` is the id, the position and the trace of what it tells of."""
    name, pos, trace = source
    return Delivery(
        endpoint_id=endpoint.id,
        zone_id=endpoint.zone_id,
        id=name,
        pos=pos,
        type=message.event,
        body=message.body,
        trace=trace,
        status=DELIVERY.start,
        attempts=0,
        queue=endpoint.id,
        next_at=now,
        answer_status=None,
        error=None,
        created_at=now,
        updated_at=now,
        delivered_at=None,
    )


def replayed(row: Delivery, now: Millis) -> Delivery:
    """As if it were new, but for its id: by that the receiver knows it."""
    return _replace(
        row, status=State.PENDING, attempts=0, queue=row.endpoint_id, next_at=now, error=None, updated_at=now
    )


def reported(row: Delivery, report: Report, now: Millis, schedule: Schedule) -> Delivery:
    """A delivery after an attempt of it."""
    row = _replace(row, answer_status=report.answer_status, error=report.error, updated_at=now)
    if report.error is None:
        return _replace(row, status=State.DELIVERED, queue=None, next_at=None, delivered_at=now)
    pause = schedule.pause(report.attempt, report.chance)
    if pause is None or report.answer_status == GONE:
        return _replace(row, status=State.FAILED, queue=None, next_at=None)
    return _replace(row, next_at=now + max(pause, min(report.wait_ms, WAIT_MAX)))


def ends(endpoint: Endpoint, report: Report, now: Millis, failing_ms: Millis) -> Why | None:
    """Whether an attempt was one too many for its endpoint."""
    if report.error is None or not endpoint.enabled:
        return None
    if report.answer_status == GONE:
        return Why.GONE
    return Why.FAILING if has_failed_for(endpoint, now, failing_ms) else None


def has_failed_for(endpoint: Endpoint, now: Millis, failing_ms: Millis) -> bool:
    return endpoint.failing_since is not None and now - endpoint.failing_since >= failing_ms


def secret_numbers(endpoint: Endpoint, now: Millis) -> Sequence[int]:
    """The secrets to sign with: the newest, and for a day after a rotation the one before it."""
    newest, at = endpoint.secret_number, endpoint.rotated_at
    return (newest, newest - 1) if at is not None and now - at < BOTH_SIGN_FOR else (newest,)


# -- what an answer means ----------------------------------------------------------------------------------------


def refusal(status: int) -> str | None:
    """Why an answer with this status is no delivery; None if it is one."""
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status}, and redirects are not followed"
    return f"it answered {status}"


def wait_of(status: int, said: str | None, now: Millis) -> Millis:
    """What `Retry-After` asks for, of answers that may ask."""
    if status not in (429, 503) or not said:
        return 0
    said = said.strip()
    if said.isascii() and said.isdigit():
        return min(int(said[:9]) * SECOND, WAIT_MAX)
    try:
        at = parsedate_to_datetime(said)
    except ValueError:
        return 0
    # A date without a zone is of GMT: HTTP knows no other.
    moment = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, min(round(moment.timestamp() * 1000) - now, WAIT_MAX))
