"""What the engine can be told. `quarterdeck.settings` reads the values; nothing here reads the environment."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class EngineSettings(msgspec.Struct, frozen=True):
    batch_max: Annotated[int, Meta(ge=1, le=10_000, description="commands in one transaction at most")] = 256
    queue_max: Annotated[
        int, Meta(ge=1, le=1_000_000, description="commands waiting in one lane at most")
    ] = 10_000


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
