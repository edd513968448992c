"""What the engine can be told. `quarterdeck.settings` reads the values; nothing here reads the environment."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class EngineSettings(msgspec.Struct, frozen=True):
    batch_max: Annotated[int, Meta(ge=1, le=10_000, description="commands in one transaction at most")] = 256
    queue_max: Annotated[int, Meta(ge=1, le=1_000_000, description="commands waiting in one lane at most")] = 10_000


class LogSettings(msgspec.Struct, frozen=True):
    """What becomes of events once they are written."""

    seal_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often what is new in the log is sealed")
    ] = 10_000
    event_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long events are kept; parts of a day may be given")
    ] = 90.0
    retention_cleanup_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often what is older than its window is removed")
    ] = 900_000


class SinkSettings(msgspec.Struct, frozen=True):
    """What is told to the outside."""

    redis_url: (
        Annotated[str, Meta(min_length=1, description="redis://, rediss:// or unix://: where streams and slots go")]
        | None
    ) = None
    streams_hmac_key: (
        Annotated[str, Meta(min_length=16, description="what entries of streams are signed with; needed with Redis")]
        | None
    ) = None
    outbox_interval_ms: Annotated[
        int, Meta(ge=10, le=3_600_000, description="how often sinks look at the log if no commit wakes them")
    ] = 1_000
    outbox_batch_size: Annotated[int, Meta(ge=1, le=1_000, description="events that a sink delivers in one go")] = 50
    outbox_max_attempts: Annotated[
        int, Meta(ge=1, le=1_000, description="tries for an entry that a sink's other side refuses")
    ] = 10
    outbox_retention_days: Annotated[
        float, Meta(gt=0, le=36_500, description="how long dead entries, and sinks that nobody runs, are kept")
    ] = 7.0
    slots_reconcile_interval_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often the slots in Redis are compared with the database")
    ] = 10_000
    keys_reconcile_interval_ms: Annotated[
        int,
        Meta(
            ge=10,
            le=86_400_000,
            description="how often the keys of tasks and agents in Redis are compared with the database",
        ),
    ] = 10_000
