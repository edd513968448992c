"""What all components of a process share, and what a component adds to a server.

`component.py` of each component takes a `Runtime` and builds the component's lanes, routes, sweeps and background work.
`quarterdeck.app` lists the components. Tests build the same components on a runtime of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from quarterdeck.core.metric_table import Metric
from quarterdeck.core.routing import Route
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import LaneObserver, Lanes
from quarterdeck.engine.leases import Lease
from quarterdeck.engine.settings import EngineSettings, LogSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, TransactionListener
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import Store

S = TypeVar("S", bound=msgspec.Struct)
CommitListener = Callable[[Sequence[NewEvent]], None]


class SettingsReader(Protocol):
    """The settings of the process, one struct per section. `quarterdeck.settings` implements it."""

    def section(self, section_type: type[S]) -> S: ...
    def source(self, name: str) -> str: ...


class MetricsRegistry(LaneObserver, Protocol):
    """The metrics of the process. `http.metrics` implements it."""

    def add(self, metric: Metric, label: str, read: Callable[[], float]) -> None: ...
    def add_histogram(self, metric: Metric) -> Callable[[float], None]: ...
    def record_events(self, events: Sequence[NewEvent]) -> None: ...


@dataclass(frozen=True, slots=True)
class Runtime:
    settings: SettingsReader
    stores: tuple[Store, Store]
    """The store for callers, confined to their zones, and the store that sees all zones."""
    wakeups: Wakeups
    metrics: MetricsRegistry
    engine: Engine
    """Confined to the zones of the caller."""
    cross_zone_engine: Engine
    """Sees all zones: for sweeps, the event tailer and administrators."""
    lanes: Lanes
    commit_listeners: list[CommitListener]
    """Called with the events of each commit of this process, right after the commit."""

    @property
    def retention_interval_ms(self) -> int:
        """How often the sweeps that delete old rows run."""
        return self.settings.section(LogSettings).retention_cleanup_interval_ms


class Startable(Protocol):
    """Background work other than a sweep. It runs while the process is serving."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Component:
    """What a component adds to a server."""

    routes: Sequence[Route]
    sweeps: Sequence[Sweep] = ()
    leases: Sequence[Lease] = ()
    startables: Sequence[Startable] = ()
    on_drain: Sequence[Callable[[], None]] = ()
    """Called first when the server begins to stop, so that long polls return."""


def build_runtime(
    settings: SettingsReader,
    stores: tuple[Store, Store],
    wakeups: Wakeups,
    metrics: MetricsRegistry,
    transaction_listeners: Sequence[TransactionListener],
) -> Runtime:
    store, cross_zone_store = stores
    commit_listeners: list[CommitListener] = [metrics.record_events]

    def after_commit(events: Sequence[NewEvent]) -> None:
        wakeups.notify()
        for listener in commit_listeners:
            listener(events)

    engine = Engine(store, transaction_listeners, after_commit)
    lanes = Lanes(engine, settings.section(EngineSettings), metrics)
    return Runtime(settings, stores, wakeups, metrics, engine, Engine(cross_zone_store), lanes, commit_listeners)
