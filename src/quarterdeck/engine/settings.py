"""Settings of the process and of the engine. `quarterdeck.settings` reads the values."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

LogLevel = Literal["debug", "info", "warning", "warn", "error", "fatal", "critical"]


class SettingsError(Exception):
    """A setting is invalid, or the server cannot start with it."""


class ServerSettings(msgspec.Struct, frozen=True):
    host: Annotated[str, Meta(min_length=1, description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="port to listen on; 0 picks a free port")] = 4000
    database_url: Annotated[str, Meta(description="postgresql://… or sqlite:///FILE")] | None = None
    db_pool_max: Annotated[int, Meta(ge=2, le=1_000, description="maximum PostgreSQL connections for requests")] = 20
    signing_key: Annotated[str, Meta(description="key file of the local issuer; replicas share it")] | None = None
    shutdown_grace_ms: Annotated[int, Meta(ge=0, le=600_000, description="maximum time to drain on shutdown")] = 15_000
    request_timeout_ms: Annotated[int, Meta(ge=10, le=600_000, description="maximum time to receive a request")] = (
        30_000
    )
    connections_max: Annotated[int, Meta(ge=1, le=1_000_000, description="maximum open connections")] = 10_000
    log_level: Annotated[LogLevel, Meta(description="least severe level that is logged")] = "info"
    sweeps: Annotated[
        bool, Meta(description="whether this server runs the sweeps; if false, run `qd sweep` on its database")
    ] = True


class EngineSettings(msgspec.Struct, frozen=True):
    batch_max: Annotated[int, Meta(ge=1, le=10_000, description="maximum commands per transaction")] = 256
    queue_max: Annotated[int, Meta(ge=1, le=1_000_000, description="maximum queued commands per lane")] = 10_000


class LogSettings(msgspec.Struct, frozen=True):
    """Sealing and retention of events."""

    seal_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often new events of the log are sealed")
    ] = 10_000
    event_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long events are kept, in days; fractions are allowed")
    ] = 90.0
    retention_cleanup_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often rows past their retention period are deleted")
    ] = 900_000


class SinkSettings(msgspec.Struct, frozen=True):
    """Delivery of events to Redis."""

    redis_url: (
        Annotated[str, Meta(min_length=1, description="redis://, rediss:// or unix:// URL for streams and keys")] | None
    ) = None
    streams_hmac_key: (
        Annotated[str, Meta(min_length=16, description="key that signs stream entries; required with Redis")] | None
    ) = None
    outbox_interval_ms: Annotated[
        int, Meta(ge=10, le=3_600_000, description="how often sinks read the log if no commit wakes them")
    ] = 1_000
    outbox_batch_size: Annotated[int, Meta(ge=1, le=1_000, description="events that a sink delivers at once")] = 50
    outbox_max_attempts: Annotated[
        int, Meta(ge=1, le=1_000, description="maximum attempts for an entry that the target of a sink rejects")
    ] = 10
    outbox_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long dead entries and unused sinks are kept, in days")
    ] = 7.0
    slots_reconcile_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often slot counters in Redis are compared with the database")
    ] = 10_000
    keys_reconcile_interval_ms: Annotated[
        int,
        Meta(ge=10, le=86_400_000, description="how often task and agent keys in Redis are compared with the database"),
    ] = 10_000
