"""When the next attempt is due. Time and jitter are arguments, so every case can be tested without waiting."""

from __future__ import annotations

from dataclasses import dataclass

from quarterdeck.core.clock import Millis


@dataclass(frozen=True, slots=True)
class Policy:
    """Exponential backoff with a cap."""

    max_attempts: int
    """Used only by `next_attempt_at`. Code that calls only `backoff` sets it to 0."""
    base_ms: int
    multiplier: float = 2.0
    cap_ms: int = 300_000
    jitter_ratio: float = 0.5
    """The share of the delay (0..1) that jitter may subtract."""


def backoff(policy: Policy, *, attempt: int, jitter: float) -> Millis:
    """The delay after attempt number `attempt` (from 1) failed. `jitter` is a random number in [0, 1)."""
    return int(_exponential_delay(policy, attempt) * (1 - policy.jitter_ratio * jitter))


def _exponential_delay(policy: Policy, attempt: int) -> float:
    """The delay before jitter."""
    if policy.base_ms == 0:
        return 0
    try:
        return min(policy.base_ms * float(policy.multiplier) ** (attempt - 1), policy.cap_ms)
    except OverflowError:
        # Attempt 5,000, or a client's multiplier of a million: beyond the range of a float, so beyond every cap.
        return policy.cap_ms


def next_attempt_at(policy: Policy, *, attempt: int, now: Millis, jitter: float) -> Millis | None:
    """The time of the next attempt, or None if `attempt` was the last one."""
    if attempt >= policy.max_attempts:
        return None
    return now + backoff(policy, attempt=attempt, jitter=jitter)
