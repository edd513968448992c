"""The states of a delivery, when the next attempt is due, and what a response means.

| outcome of an attempt                 | result                                       |
|---------------------------------------|----------------------------------------------|
| 2xx                                   | delivered                                    |
| 410                                   | failed, and the endpoint is disabled         |
| any other status, an invalid response | a failure: retried, or failed after the last |
| no response, a blocked address        | a failure: retried, or failed after the last |
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
"""The longest delay that a Retry-After header can request."""
ENDPOINT_DISABLED = "the webhook is disabled or removed"
_replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """The delays after the first, second, … failure. After the last delay one more attempt is made."""

    delays: Sequence[Millis] = (
        5 * SECOND, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR,
    )  # fmt: skip
    jitter_ratio: float = 0.1
    """Maximum jitter as a share of the delay, so that deliveries that failed together are not retried together."""

    def delay(self, attempt: int, jitter: float) -> Millis | None:
        """The delay after failed attempt number `attempt` (from 1), or None if it was the last."""
        if attempt > len(self.delays):
            return None
        return round(self.delays[attempt - 1] * (1 + self.jitter_ratio * jitter))


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    schedule: RetrySchedule
    max_failing_ms: Millis
    """How long an endpoint may fail before it is disabled."""


def new_delivery(endpoint: Endpoint, payload: Payload, source: tuple[str, int, str | None], now: Millis) -> Delivery:
    """`source` is the id, the log position and the trace of the event."""
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
    """Reset a delivery. It keeps its id, by which the receiver recognises it."""
    return _replace(
        row, status=DeliveryState.PENDING, attempts=0, queue=row.endpoint_id, next_at=now, error=None, updated_at=now
    )


def apply_report(row: Delivery, report: ReportAttempt, now: Millis, schedule: RetrySchedule) -> Delivery:
    """The delivery after an attempt."""
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
    """Why the endpoint must be disabled after this attempt, or None."""
    if report.error is None or not endpoint.enabled:
        return None
    if report.answer_status == HTTP_GONE:
        return DisableReason.GONE
    return DisableReason.FAILING if has_failed_for(endpoint, now, max_failing_ms) else None


def has_failed_for(endpoint: Endpoint, now: Millis, duration_ms: Millis) -> bool:
    return endpoint.failing_since is not None and now - endpoint.failing_since >= duration_ms


def secret_numbers(endpoint: Endpoint, now: Millis) -> Sequence[int]:
    """The secrets to sign with: the newest, and for a day after a rotation also the previous one."""
    newest, rotated_at = endpoint.secret_number, endpoint.rotated_at
    return (newest, newest - 1) if rotated_at is not None and now - rotated_at < SECRET_OVERLAP_MS else (newest,)


# -- responses ---------------------------------------------------------------------------------------------------


def status_error(status: int) -> str | None:
    """The error for a response with this status, or None if the delivery succeeded."""
    if 200 <= status < 300:
        return None
    if 300 <= status < 400:
        return f"the endpoint answered {status}, and redirects are not followed"
    return f"the endpoint answered {status}"


def retry_after_ms(status: int, header: str | None, now: Millis) -> Millis:
    """The delay that a `Retry-After` header requests. It is 0 unless the status is 429 or 503."""
    if status not in (429, 503) or not header:
        return 0
    header = header.strip()
    if header.isascii() and header.isdigit():
        return min(int(header[:9]) * SECOND, RETRY_AFTER_MAX_MS)
    try:
        retry_at = parsedate_to_datetime(header)
    except ValueError:
        return 0
    # HTTP dates are always in GMT, even if the parser finds no time zone.
    moment = retry_at if retry_at.tzinfo is not None else retry_at.replace(tzinfo=UTC)
    return max(0, min(round(moment.timestamp() * 1000) - now, RETRY_AFTER_MAX_MS))
