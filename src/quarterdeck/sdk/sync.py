"""The client for code without a loop. Written by `make sdk`: change `generate`, or the classes it reads, and not this.

    with Quarterdeck.connect() as qd:
        planner = qd.sessions.spawn("planner")

Every class here stands for the one of the same name that has a loop, and every method waits for its own. Calls of any
number of threads run side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from quarterdeck.sdk import client, delegations, events, invocations, services, sessions, zones
from quarterdeck.sdk.asks import DelegateOptions, EnqueueOptions, ServiceOptions, SpawnOptions
from quarterdeck.sdk.background import Background
from quarterdeck.sdk.model import (
    Authority,
    Completion,
    Delegation,
    DelegationStatus,
    Event,
    Health,
    Invocation,
    InvocationStatus,
    Item,
    Lease,
    Quotas,
    Receipt,
    Revoked,
    Service,
    Session,
    SessionStatus,
    Token,
    Zone,
)
from quarterdeck.sdk.remote import Options, TokenSource


class Sessions:
    def __init__(self, inner: sessions.Sessions, background: Background) -> None:
        self._inner = inner
        self._background = background

    def spawn(
        self, application_id: str, *, key: str | None = None, **options: Unpack[SpawnOptions]
    ) -> Session:
        """Spawns a session of an application. With the same `key`, the same session while it lives."""
        return self._background.run(self._inner.spawn(application_id, key=key, **options))

    def get(self, session_id: str) -> Session:
        return self._background.run(self._inner.get(session_id))

    def list(
        self,
        *,
        status: SessionStatus | None = None,
        application_id: str | None = None,
        parent_id: str | None = None,
        root_id: str | None = None,
    ) -> Iterator[Session]:
        """Newest first."""
        return self._background.iterate(
            self._inner.list(
                status=status, application_id=application_id, parent_id=parent_id, root_id=root_id
            )
        )

    def children(self, session_id: str, *, status: SessionStatus | None = None) -> Iterator[Session]:
        """Those spawned directly under a session, newest first."""
        return self._background.iterate(self._inner.children(session_id, status=status))

    def tree(self, session_id: str) -> tuple[Session, ...]:
        """A session with its whole subtree, parents before their children."""
        return self._background.run(self._inner.tree(session_id))

    def suspend(self, session_id: str) -> int:
        """Puts a session and everything under it to sleep; how many fell asleep. Not made again by itself if its answer
        is lost: suspending twice is two events."""
        return self._background.run(self._inner.suspend(session_id))

    def resume(self, session_id: str) -> int:
        """Clears a session's own suspension; how many woke."""
        return self._background.run(self._inner.resume(session_id))

    def end(self, session_id: str, *, reason: str | None = None) -> Receipt:
        """Ends a session and its whole subtree; what was stopped, counted afterwards. Ending twice is harmless."""
        return self._background.run(self._inner.end(session_id, reason=reason))


class Services:
    def __init__(self, inner: services.Services, background: Background) -> None:
        self._inner = inner
        self._background = background

    def register(
        self,
        application_id: str,
        endpoint_url: str,
        *,
        agent_id: str | None = None,
        **options: Unpack[ServiceOptions],
    ) -> Service:
        """Registers what an application offers at an endpoint, or describes anew what it offers there already. With an
        `agent_id` it is registered for as long as that session lives. The secret of a new push service is in this
        answer and in no later one; if the answer was lost, `rotate_secret` gives another."""
        return self._background.run(
            self._inner.register(application_id, endpoint_url, agent_id=agent_id, **options)
        )

    def get(self, service_id: str) -> Service:
        return self._background.run(self._inner.get(service_id))

    def list(self, *, application_id: str | None = None, health: Health | None = None) -> Iterator[Service]:
        """Newest first."""
        return self._background.iterate(self._inner.list(application_id=application_id, health=health))

    def find(self, application_id: str) -> Service:
        """The service of an application, the newest if it has several."""
        return self._background.run(self._inner.find(application_id))

    def patch(self, service_id: str, **options: Unpack[ServiceOptions]) -> Service:
        """Changes what is named, and leaves the rest."""
        return self._background.run(self._inner.patch(service_id, **options))

    def unregister(self, service_id: str) -> None:
        """Takes a service back, whoever registered it: nothing new is asked of it, and what waits is canceled."""
        self._background.run(self._inner.unregister(service_id))

    def rotate_secret(self, service_id: str) -> Service:
        """From now on pushes are signed with another secret, which this answer shows."""
        return self._background.run(self._inner.rotate_secret(service_id))

    def heartbeat(
        self,
        service_id: str,
        *,
        health: Health | None = None,
        active_invocations: int | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Says that it is there, and how it is."""
        self._background.run(
            self._inner.heartbeat(
                service_id, health=health, active_invocations=active_invocations, metadata=metadata
            )
        )


class Invocations:
    def __init__(self, inner: invocations.Invocations, background: Background) -> None:
        self._inner = inner
        self._background = background

    def enqueue(
        self,
        service_id: str,
        method: str,
        params: object = None,
        *,
        key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Invocation:
        """Has a method of a service called: durably, and once for each `key`."""
        return self._background.run(self._inner.enqueue(service_id, method, params, key=key, **options))

    def call(
        self,
        service_id: str,
        method: str,
        params: object = None,
        *,
        key: str | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> object:
        """Enqueues, waits for the end, and gives the result. However it ends otherwise, `NotSucceeded` is raised. How
        long that may take is for `timeout_ms` and the policy of its attempts to say."""
        return self._background.run(self._inner.call(service_id, method, params, key=key, **options))

    def get(self, invocation_id: str) -> Invocation:
        return self._background.run(self._inner.get(invocation_id))

    def list(
        self,
        *,
        status: InvocationStatus | None = None,
        service_id: str | None = None,
        source_session_id: str | None = None,
        target_session_id: str | None = None,
    ) -> Iterator[Invocation]:
        """Newest first."""
        return self._background.iterate(
            self._inner.list(
                status=status,
                service_id=service_id,
                source_session_id=source_session_id,
                target_session_id=target_session_id,
            )
        )

    def cancel(self, invocation_id: str, *, reason: str | None = None) -> Invocation:
        """Asks for the end of one that is not over. One that runs is canceled when its worker says so, or when its time
        is over."""
        return self._background.run(self._inner.cancel(invocation_id, reason=reason))

    def wait(self, invocation_id: str, *, timeout: float | None = None) -> Invocation:
        """The invocation, once it has succeeded. However it ends otherwise, `NotSucceeded` is raised; if it is not over
        within `timeout` seconds, `TimedOut`, and it goes on."""
        return self._background.run(self._inner.wait(invocation_id, timeout=timeout))

    def claim(
        self, service_id: str, claim_id: str, *, most: int = 1, wait_seconds: float = 0.0
    ) -> tuple[Lease, ...]:
        """Leases of work that waits, or comes within the time. The same `claim_id` gives the same leases again, so a
        claim whose answer was lost is made once more with its own."""
        return self._background.run(
            self._inner.claim(service_id, claim_id, most=most, wait_seconds=wait_seconds)
        )

    def complete(self, done: Sequence[Completion]) -> tuple[Item, ...]:
        """What became of attempts, at most 100. What is said twice is answered twice."""
        return self._background.run(self._inner.complete(done))

    def heartbeat(self, held: Sequence[Token]) -> tuple[Item, ...]:
        """Extends leases, at most 100; the answer says whose cancellation was asked for."""
        return self._background.run(self._inner.heartbeat(held))

    def release(self, held: Sequence[Token]) -> tuple[Item, ...]:
        """Gives leases back, at most 100: their attempts do not count."""
        return self._background.run(self._inner.release(held))


class Delegations:
    def __init__(self, inner: delegations.Delegations, background: Background) -> None:
        self._inner = inner
        self._background = background

    def create(
        self, source: str, target: str, *, key: str | None = None, **options: Unpack[DelegateOptions]
    ) -> Delegation:
        """Lends authority of the session `source` to the session `target`: never more than it has."""
        return self._background.run(self._inner.create(source, target, key=key, **options))

    def get(self, edge_id: str) -> Delegation:
        return self._background.run(self._inner.get(edge_id))

    def list(
        self, *, source: str | None = None, target: str | None = None, status: DelegationStatus | None = None
    ) -> Iterator[Delegation]:
        """Newest first."""
        return self._background.iterate(self._inner.list(source=source, target=target, status=status))

    def revoke(self, edge_id: str, *, keep_sessions: bool = False) -> Revoked:
        """Takes an edge back, with all that are derived from it, and ends whoever is left without authority. With
        `keep_sessions` they run on without it."""
        return self._background.run(self._inner.revoke(edge_id, keep_sessions=keep_sessions))

    def authority(self, session_id: str) -> Authority:
        """By which edges a session holds what."""
        return self._background.run(self._inner.authority(session_id))


class Events:
    def __init__(self, inner: events.Events, background: Background) -> None:
        self._inner = inner
        self._background = background

    def list(
        self, *, after: int = 0, types: Sequence[str] = (), subject: str | None = None
    ) -> Iterator[Event]:
        """What is in the log, oldest first, from behind a position to the end there is now."""
        return self._background.iterate(self._inner.list(after=after, types=types, subject=subject))

    def follow(
        self, *, after: int | None = None, types: Sequence[str] = (), subject: str | None = None
    ) -> Iterator[Event]:
        """What happens, as it happens, without an end: from behind a position, or from now on. Connections that are cut
        are made again, and nothing is missed by it; where the log no longer holds what was missed, `LogReset` is
        raised."""
        return self._background.iterate(self._inner.follow(after=after, types=types, subject=subject))


class Zones:
    def __init__(self, inner: zones.Zones, background: Background) -> None:
        self._inner = inner
        self._background = background

    def get(self) -> Zone:
        return self._background.run(self._inner.get())

    def put(self, *, name: str | None = None, quotas: Mapping[str, int | None] | None = None) -> Zone:
        """Makes the zone, or changes what is named. For administrators."""
        return self._background.run(self._inner.put(name=name, quotas=quotas))

    def quotas(self) -> Quotas:
        """The limits in force, and what is used."""
        return self._background.run(self._inner.quotas())

    def freeze(self) -> Zone:
        """Stops every admission to the zone. For administrators."""
        return self._background.run(self._inner.freeze())

    def thaw(self) -> Zone:
        return self._background.run(self._inner.thaw())

    def stop(self, *, reason: str | None = None) -> Receipt:
        """The big red button: freezes the zone and ends every session in it. For administrators."""
        return self._background.run(self._inner.stop(reason=reason))


class Quarterdeck:
    """A client for one zone. Nothing is looked for before the first call; `close` lets go of everything."""

    def __init__(self, inner: client.Quarterdeck, background: Background) -> None:
        self._inner = inner
        self._background = background
        self.zones = Zones(inner.zones, background)
        self.sessions = Sessions(inner.sessions, background)
        self.services = Services(inner.services, background)
        self.invocations = Invocations(inner.invocations, background)
        self.delegations = Delegations(inner.delegations, background)
        self.events = Events(inner.events, background)

    @classmethod
    def connect(
        cls,
        url: str | None = None,
        token: str | TokenSource | None = None,
        zone: str | None = None,
        data: str | None = None,
        options: Options | None = None,
    ) -> Quarterdeck:
        """A client of the server at `url` (or QD_URL), or of the server of the data directory `data` (or QD_DATA, or
        the user's), which is started if none runs. The token is the one given, or QD_TOKEN, or the directory's; the
        zone the one given, or QD_ZONE, or `default`."""
        return cls(client.Quarterdeck.connect(url, token, zone, data, options), Background())

    @property
    def zone(self) -> str:
        return self._inner.zone

    def in_zone(self, zone: str) -> Quarterdeck:
        """A client for another zone, over the same connections."""
        return Quarterdeck(self._inner.in_zone(zone), self._background)

    def close(self) -> None:
        self._background.finish(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
