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
