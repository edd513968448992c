"""Every metric of the server: name, type, help text, labels and buckets. `docs/metrics.md` is generated from it.

The code that counts refers to these constants. Names, types and labels are public: dashboards and alert rules use them.
Names without the prefix `quarterdeck_` come from the specifications of this server.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial

import msgspec


class Kind(StrEnum):
    HISTOGRAM = "histogram"
    GAUGE = "gauge"
    COUNTER = "counter"


class Metric(msgspec.Struct, frozen=True, eq=False):
    """The declaration of a metric. With `eq=False` it is hashed by identity, so it can be the key of a dict."""

    subject: str
    name: str
    """As Prometheus shows it: the name of a counter ends in `_total`."""
    kind: Kind
    help_text: str
    labels: Mapping[str, str] = {}
    """Label → what its values are."""
    buckets: tuple[float, ...] = ()


_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
# Longer, because the time to the end of an invocation includes waiting and retries.
_LONG_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

_http = partial(Metric, "HTTP requests and event streams")
_ROUTE = "method and path pattern, or `unmatched`"
HTTP_REQUESTS = _http(
    "quarterdeck_http_requests_total", Kind.COUNTER, "Requests answered", {"route": _ROUTE, "status": "HTTP status"}
)
HTTP_REQUEST_SECONDS = _http(
    "quarterdeck_http_request_duration_seconds", Kind.HISTOGRAM, "Duration of a request", {"route": _ROUTE}, _SECONDS
)
STREAMS_OPEN = _http("quarterdeck_streams_open", Kind.GAUGE, "Open event streams", {"name": "`events`"})
STREAMS_FELL_BEHIND = _http(
    "quarterdeck_streams_fell_behind_total",
    Kind.COUNTER,
    "Times a stream's client was too slow and had to read from the log again",
    {"name": "`events`"},
)
LOG_LINES_LOST = _http(
    "quarterdeck_log_lines_lost_total", Kind.COUNTER, "Log lines that could not be written", {"name": "`stderr`"}
)

_lane = partial(Metric, "Lanes: batches of commands, one transaction each")
_LANE = "the lane"
LANE_BATCH_SIZE = _lane(
    "quarterdeck_lane_batch_size", Kind.HISTOGRAM, "Commands per batch", {"lane": _LANE}, _BATCH_SIZES
)
LANE_BATCH_SECONDS = _lane(
    "quarterdeck_lane_batch_seconds", Kind.HISTOGRAM, "Duration of a batch", {"lane": _LANE}, _SECONDS
)
LANE_WAITING = _lane("quarterdeck_lane_waiting", Kind.GAUGE, "Commands waiting in a lane", {"name": _LANE})
LANE_REFUSALS = _lane(
    "quarterdeck_lane_refusals_total", Kind.COUNTER, "Commands refused", {"lane": _LANE, "code": "error code"}
)
LANE_RETRIES = _lane(
    "quarterdeck_lane_retries_total", Kind.COUNTER, "Transactions retried", {"lane": _LANE, "code": "SQLSTATE"}
)

_session = partial(Metric, "Sessions")
QUOTA_DENIALS = _session(
    "subagent_quota_denials_total", Kind.COUNTER, "Requests refused by a bound", {"bound": "the limit"}
)
TERMINATIONS = _session(
    "subagent_cascade_terminations_total",
    Kind.COUNTER,
    "Sessions terminated, by reason",
    {"reason": "`requested`, `ttl_expired`, `orphaned`, `delegation_revoked` or `other`"},
)

_sweep = partial(Metric, "Sweeps")
SWEEP_ACTIONS = _sweep(
    "subagent_sweeper_actions_total",
    Kind.COUNTER,
    "Rows that sweeps changed, and sweeps that failed",
    {"sweep": "the sweep", "action": "`moved` (rows) or `failed` (sweeps)"},
)
CROSS_ZONE_READS = _sweep(
    "subagent_sweeper_cross_tenant_reads_total",
    Kind.COUNTER,
    "Completed sweeps: each reads across zones",
    {"sweep": "the sweep"},
)

_invocation = partial(Metric, "Invocations")
INVOCATIONS = _invocation(
    "subagent_invocations_total",
    Kind.COUNTER,
    "Invocations ended, by outcome",
    {"outcome": "`succeeded`, `failed`, `timed_out`, `canceled` or `dead`"},
)
INVOCATION_SECONDS = _invocation(
    "subagent_invoke_duration_seconds",
    Kind.HISTOGRAM,
    "Time from the creation of an invocation to its end",
    buckets=_LONG_SECONDS,
)
CLAIMS_WAITING = _invocation(
    "quarterdeck_claims_waiting", Kind.GAUGE, "Claims waiting for work", {"name": "`invocations` or `tasks`"}
)
PUSHES = _invocation("quarterdeck_pushes_total", Kind.COUNTER, "Pushes, by outcome", {"name": "the outcome"})
PUSHES_UNDER_WAY = _invocation(
    "quarterdeck_pushes_under_way", Kind.GAUGE, "Pushes in progress", {"name": "`invocations`"}
)

_task = partial(Metric, "Tasks, agents and the coordinator")
_COORDINATOR = {"name": "`coordinator`"}
CYCLE_SECONDS = _task(
    "coordinator_cycle_duration_seconds", Kind.HISTOGRAM, "Duration of a coordinator cycle", buckets=_SECONDS
)
COORDINATOR_FAILING = _task(
    "quarterdeck_coordinator_failing", Kind.GAUGE, "1 while the coordinator's cycles fail", _COORDINATOR
)
STALE_AGENTS = _task("coordinator_stale_agents", Kind.GAUGE, "Agents that are stale", _COORDINATOR)
TASKS_PENDING = _task("tasks_pending", Kind.GAUGE, "Tasks waiting for an agent", _COORDINATOR)
TASKS_FAILED = _task("tasks_failed_total", Kind.COUNTER, "Tasks that failed without a further retry", _COORDINATOR)
RETRIES_EXHAUSTED = _task(
    "tasks_retry_exhausted_total", Kind.COUNTER, "Tasks that failed because no retries were left", _COORDINATOR
)
AGENTS_SPAWNED = _task("agents_spawned_total", Kind.COUNTER, "Launches that succeeded", _COORDINATOR)
LAUNCHES_FAILED = _task("quarterdeck_launches_failed_total", Kind.COUNTER, "Launches that failed", _COORDINATOR)
LAUNCHES = _task("quarterdeck_launches", Kind.GAUGE, "Launches in progress and running processes", _COORDINATOR)
LOG_READERS_WAITING = _task(
    "quarterdeck_log_readers_waiting", Kind.GAUGE, "Long polls waiting for new lines of a task log", {"name": "`tasks`"}
)
SECRETS_UNOPENED = _task(
    "quarterdeck_secrets_unopened_total", Kind.COUNTER, "Failed decryptions of secret values", {"name": "`secrets`"}
)

_fleet = partial(Metric, "Fleets")
POLLS_WAITING = _fleet(
    "quarterdeck_polls_waiting", Kind.GAUGE, "Long polls waiting for a message", {"name": "`messages`"}
)
NOTICES = _fleet("quarterdeck_notices_total", Kind.COUNTER, "Notices of messages, by outcome", {"name": "the outcome"})
NOTICES_WAITING = _fleet(
    "quarterdeck_notices_waiting", Kind.GAUGE, "Notices without a receipt yet", {"name": "`panes`"}
)

_webhook = partial(Metric, "Webhooks")
WEBHOOKS = _webhook(
    "quarterdeck_webhooks_total", Kind.COUNTER, "Delivery attempts, by outcome", {"name": "the outcome"}
)
WEBHOOKS_UNDER_WAY = _webhook(
    "quarterdeck_webhooks_under_way", Kind.GAUGE, "Deliveries in progress", {"name": "`webhooks`"}
)

_sink = partial(Metric, "Sinks and Redis")
_SINK, _REDIS = {"name": "the sink"}, {"name": "`redis`"}
SINK_LAG_EVENTS = _sink("quarterdeck_sink_lag_events", Kind.GAUGE, "Events not delivered yet", _SINK)
SINK_LAG_SECONDS = _sink("quarterdeck_sink_lag_seconds", Kind.GAUGE, "Age of the oldest event not delivered yet", _SINK)
SINK_STUCK = _sink(
    "quarterdeck_sink_stuck", Kind.GAUGE, "Entries rejected repeatedly that are retried without limit", _SINK
)
SINK_DELIVERED = _sink("quarterdeck_sink_delivered_total", Kind.COUNTER, "Entries delivered", _SINK)
SINK_REFUSED = _sink("quarterdeck_sink_refused_total", Kind.COUNTER, "Rejections of entries", _SINK)
SINK_DEAD = _sink("quarterdeck_sink_dead_total", Kind.COUNTER, "Entries dropped after too many rejections", _SINK)
SINK_MISSED = _sink("quarterdeck_sink_missed_total", Kind.COUNTER, "Events deleted before they were delivered", _SINK)
REDIS_KEY_REPAIRS = _sink("quarterdeck_redis_keys_repairs_total", Kind.COUNTER, "Redis keys repaired", _REDIS)
SLOT_REPAIRS = _sink("quarterdeck_slots_repairs_total", Kind.COUNTER, "Slot counters repaired", _REDIS)
HEARTBEATS_LOST = _sink("quarterdeck_redis_beats_lost_total", Kind.COUNTER, "Heartbeats not written to Redis", _REDIS)
REDIS_CONNECTION_ERRORS = _sink("valkey_connection_errors_total", Kind.COUNTER, "Failed connections to Redis", _REDIS)

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
