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
from quarterdeck.core.state_machine import StateMachine
from quarterdeck.domain.webhooks.model import (
    Delivery,
    DeliveryState,
    DeliveryVerb,
    DisableReason,
    Endpoint,
    ReportAttempt,
)
from quarterdeck.domain.webhooks.rules.payloads import Payload

DELIVERY_STATES: StateMachine[DeliveryState, DeliveryVerb] = StateMachine(
    "delivery",
    DeliveryState,
    DeliveryState.PENDING,
    {
        DeliveryVerb.DELIVER: {DeliveryState.PENDING: DeliveryState.DELIVERED},
        DeliveryVerb.RETRY: {DeliveryState.PENDING: DeliveryState.PENDING},
        DeliveryVerb.GIVE_UP: {DeliveryState.PENDING: DeliveryState.FAILED},
        DeliveryVerb.REPLAY: {
            DeliveryState.PENDING: DeliveryState.PENDING,
            DeliveryState.DELIVERED: DeliveryState.PENDING,
            DeliveryState.FAILED: DeliveryState.PENDING,
        },
    },
)
HOUR = 60 * MINUTE
HTTP_GONE = 410
SECRET_OVERLAP_MS = DAY
RETRY_AFTER_MAX_MS = DAY
"""An endpoint may ask for so long a pause, and no longer."""
ENDPOINT_DISABLED = "the endpoint hears of nothing any more"
_replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """The pauses after the first, second, … failure; after one more than there are pauses, it has failed."""

    delays: Sequence[Millis] = (
        5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR,
    )  # fmt: skip
    jitter_ratio: float = 0.1
    """The share of a pause that chance may add, so that what failed together does not come again together."""

    def delay(self, attempt: int, jitter: float) -> Millis | None:
        """How long to wait after the attempt numbered so (from 1) failed; None if it was the last."""
        if attempt > len(self.delays):
            return None
        return round(self.delays[attempt - 1] * (1 + self.jitter_ratio * jitter))


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """How long what fails is borne."""

    schedule: RetrySchedule
    max_failing_ms: Millis
    """For how long an endpoint may fail."""


def new_delivery(endpoint: Endpoint, payload: Payload, source: tuple[str, int, str | None], now: Millis) -> Delivery:
    """A delivery to an endpoint; `source` is the id, the position and the trace of what it tells of."""
    event_id, pos, trace = source
    return Delivery(
        endpoint_id=endpoint.id,
        zone_id=endpoint.zone_id,
        id=event_id,
        pos=pos,
        type=payload.event,
        body=payload.body,
        trace=trace,
        status=DELIVERY_STATES.initial,
        attempts=0,
        queue=endpoint.id,
        next_at=now,
        answer_status=None,
        error=None,
        created_at=now,
        updated_at=now,
        delivered_at=None,
    )


def replay(row: Delivery, now: Millis) -> Delivery:
    """As if it were new, but for its id: by that the receiver knows it."""
    return _replace(
        row, status=DeliveryState.PENDING, attempts=0, queue=row.endpoint_id, next_at=now, error=None, updated_at=now
    )


def apply_report(row: Delivery, report: ReportAttempt, now: Millis, schedule: RetrySchedule) -> Delivery:
    """A delivery after an attempt of it."""
    row = _replace(row, answer_status=report.answer_status, error=report.error, updated_at=now)
    if report.error is None:
        return _replace(row, status=DeliveryState.DELIVERED, queue=None, next_at=None, delivered_at=now)
    delay = schedule.delay(report.attempt, report.jitter)
    if delay is None or report.answer_status == HTTP_GONE:
        return _replace(row, status=DeliveryState.FAILED, queue=None, next_at=None)
    return _replace(row, next_at=now + max(delay, min(report.retry_after_ms, RETRY_AFTER_MAX_MS)))


def disable_reason(
    endpoint: Endpoint, report: ReportAttempt, now: Millis, max_failing_ms: Millis
) -> DisableReason | None:
    """Whether an attempt was one too many for its endpoint."""
    if report.error is None or not endpoint.enabled:
        return None
    if report.answer_status == HTTP_GONE:
        return DisableReason.GONE
    return DisableReason.FAILING if has_failed_for(endpoint, now, max_failing_ms) else None


def has_failed_for(endpoint: Endpoint, now: Millis, duration_ms: Millis) -> bool:
    return endpoint.failing_since is not None and now - endpoint.failing_since >= duration_ms


def secret_numbers(endpoint: Endpoint, now: Millis) -> Sequence[int]:
    """The secrets to sign with: the newest, and for a day after a rotation the one before it."""
    newest, at = endpoint.secret_number, endpoint.rotated_at
    return (newest, newest - 1) if at is not None and now - at < SECRET_OVERLAP_MS else (newest,)


# -- what an answer means ----------------------------------------------------------------------------------------


def status_error(status: int) -> str | None:
    """Why an answer with this status is no delivery; None if it is one."""
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"it answered {status}, and redirects are not followed"
    return f"it answered {status}"


def retry_after_ms(status: int, header: str | None, now: Millis) -> Millis:
    """What `Retry-After` asks for, of answers that may ask."""
    if status not in (429, 503) or not header:
        return 0
    header = header.strip()
    if header.isascii() and header.isdigit():
        return min(int(header[:9]) * SECOND, RETRY_AFTER_MAX_MS)
    try:
        retry_at = parsedate_to_datetime(header)
    except ValueError:
        return 0
    # A date without a zone is of GMT: HTTP knows no other.
    moment = retry_at if retry_at.tzinfo is not None else retry_at.replace(tzinfo=UTC)
    return max(0, min(round(moment.timestamp() * 1000) - now, RETRY_AFTER_MAX_MS))
