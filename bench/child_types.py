"""The input and output of the child processes.

This module imports only msgspec, so that child processes start fast.
"""

from __future__ import annotations

import msgspec

NUMBER_PLACEHOLDER = "############"
"""Each request replaces it in the body by its own number, with as many digits."""


class LoadConfig(msgspec.Struct, frozen=True):
    """The input of our load generators, on standard input."""

    host: str
    port: int
    token: str
    method: str
    paths: list[str]
    body: str
    connections: int
    seconds: float
    rate: float | None = None
    """Requests per second on a fixed schedule. None: each connection sends its next request after a response."""


class LoadResult(msgspec.Struct, frozen=True):
    """The result of a load generator."""

    count: int
    """Responses, with any status."""
    seconds: float
    refused: int
    """Responses other than 2xx (wrk: 400 and above)."""
    lost: int
    """Failed connections, and requests without a response."""
    p50_ms: float
    p99_ms: float
    cpu_seconds: float | None = None
    """The CPU time of the generator while it sent. None: the parent process measures it."""


class OpenLoopResult(LoadResult, frozen=True, kw_only=True):
    """The result of a sender with a fixed schedule."""

    p999_ms: float
    max_ms: float
    late_p99_ms: float
    """How late the sender sent requests that had a free connection: its own part of the latency."""
    waited: int
    """Requests that found no free connection when they were due."""


class DeliveryResult(LoadResult, frozen=True, kw_only=True):
    """The result of event readers: `count` events arrived, `refused` of them out of order or invalid.

    `lost` counts the listeners that missed events, or the stream entries that did not arrive.
    """

    max_ms: float


class WorkerConfig(msgspec.Struct, frozen=True):
    url: str
    token: str
    zone: str
    application: str
    method: str
    concurrency: int


class WorkerResult(msgspec.Struct, frozen=True):
    cpu_seconds: float


class ServerAddress(msgspec.Struct, frozen=True):
    host: str
    port: int
    token: str


class StartConfig(msgspec.Struct, frozen=True):
    """The server that gets the calls, the server at which the claim waits, and the number of rounds."""

    caller: ServerAddress
    claimer: ServerAddress
    zone: str
    service_id: str
    body: str
    rounds: int


class StartResult(msgspec.Struct, frozen=True):
    seconds: list[float]
    """One per round, in order."""


class ClaimConfig(msgspec.Struct, frozen=True):
    """In each round `limit` tasks are created, claimed by the agent and completed."""

    server: ServerAddress
    agent: str
    limit: int
    rounds: int


class ClaimResult(msgspec.Struct, frozen=True):
    seconds: list[float]
    """One per claim, in order."""


class SweepConfig(msgspec.Struct, frozen=True):
    data_dir: str
    database: str
    sweep: str


class SweepResult(msgspec.Struct, frozen=True):
    swept: int
    seconds: float
    cpu_seconds: float


class ReaderConfig(msgspec.Struct, frozen=True):
    """The stream, the number of expected entries, and their signing key."""

    redis_url: str
    stream: str
    after_id: str
    """The id of the last entry before the run."""
    zone: str
    count: int
    seconds: float
    signing_key: str
