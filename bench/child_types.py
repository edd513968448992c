"""What the generators are told and what they answer.

Imports next to nothing, because each generator is a process of its own.
"""

from __future__ import annotations

import msgspec

NUMBER_PLACEHOLDER = "############"
"""Where this stands in a body, each request has a number of its own, of as many digits."""


class LoadConfig(msgspec.Struct, frozen=True):
    """What a generator of ours is told, on its standard input."""

    host: str
    port: int
    token: str
    method: str
    paths: list[str]
    body: str
    connections: int
    seconds: float
    rate: float | None = None
    """Requests per second to send whatever happens; None sends the next when the last is answered."""


class LoadResult(msgspec.Struct, frozen=True):
    """What a generator saw."""

    count: int
    """Answers that came, whatever they said."""
    seconds: float
    refused: int
    """Answers that were not 2xx (wrk: 400 and above)."""
    lost: int
    """Connections that failed."""
    p50_ms: float
    p99_ms: float
    cpu_seconds: float | None = None
    """What the generator used while it sent; None leaves it to whoever started it."""


class OpenLoopResult(LoadResult, frozen=True, kw_only=True):
    """What a sender with a schedule saw besides."""

    p999_ms: float
    max_ms: float
    late_p99_ms: float
    """How late the sender itself was with requests that had a free connection: its own part of the latencies."""
    waited: int
    """How many found no free connection when they were due."""


class DeliveryResult(LoadResult, frozen=True, kw_only=True):
    """What listeners saw: `count` is of events received, by any of them; `refused` of those that were not the next."""

    max_ms: float


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a worker is told."""

    url: str
    token: str
    zone: str
    application: str
    method: str
    concurrency: int


class WorkerResult(msgspec.Struct, frozen=True):
    cpu_seconds: float


class ServerAddress(msgspec.Struct, frozen=True):
    """A server, and what it is shown."""

    host: str
    port: int
    token: str


class StartConfig(msgspec.Struct, frozen=True):
    """Who calls where, who waits where, and how often."""

    caller: ServerAddress
    claimer: ServerAddress
    zone: str
    service_id: str
    body: str
    rounds: int


class StartResult(msgspec.Struct, frozen=True):
    seconds: list[float]
    """Of each round, in order."""


class ClaimConfig(msgspec.Struct, frozen=True):
    """How often so many tasks are made, claimed by this agent and completed."""

    server: ServerAddress
    agent: str
    limit: int
    rounds: int


class ClaimResult(msgspec.Struct, frozen=True):
    seconds: list[float]
    """Of each claim, in order."""


class SweepConfig(msgspec.Struct, frozen=True):
    """Which sweep is to be made of which database."""

    data_dir: str
    database: str
    sweep: str


class SweepResult(msgspec.Struct, frozen=True):
    swept: int
    seconds: float
    cpu_seconds: float


class ReaderConfig(msgspec.Struct, frozen=True):
    """Which entries of which stream are to come, and how they are signed."""

    redis: str
    stream: str
    after_id: str
    """The id of the last entry that does not count."""
    zone: str
    count: int
    seconds: float
    key: str
