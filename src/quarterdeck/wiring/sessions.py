"""The rooms of the session plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from quarterdeck.core.pushkeys import Secrets, secrets_from
from quarterdeck.core.routing import Caller
from quarterdeck.domain.api_keys import operations as keys, routes as key_routes
from quarterdeck.domain.api_keys.routes import KeyDesk
from quarterdeck.domain.delegations import operations as delegations, routes as delegation_routes
from quarterdeck.domain.delegations.model import DelegationSettings
from quarterdeck.domain.delegations.routes import DelegationDesk
from quarterdeck.domain.delegations.sweeps import sweeps as delegation_sweeps
from quarterdeck.domain.invocations import operations as invocations, routes as invocation_routes
from quarterdeck.domain.invocations.model import Command, InvocationSettings, Outcome
from quarterdeck.domain.invocations.push_delivery import Means, Pusher
from quarterdeck.domain.invocations.routes import InvocationDesk
from quarterdeck.domain.invocations.rules.push_protocol import CODES
from quarterdeck.domain.invocations.sweeps import sweeps as invocation_sweeps
from quarterdeck.domain.services import operations as services, routes as service_routes
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.services.routes import ServiceDesk
from quarterdeck.domain.services.sweeps import sweeps as service_sweeps
from quarterdeck.domain.sessions import operations as sessions, routes as session_routes
from quarterdeck.domain.sessions.model import SessionSettings
from quarterdeck.domain.sessions.routes import SessionDesk
from quarterdeck.domain.sessions.sweeps import Reconciler, sweeps as session_sweeps
from quarterdeck.domain.zones import operations as zones, routes as zone_routes
from quarterdeck.domain.zones.model import DEFAULT_ZONE, Limits, PutZone
from quarterdeck.domain.zones.routes import ZoneDesk
from quarterdeck.engine.idempotency import KeyRetention
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Lookout
from quarterdeck.engine.outbound_http import LAB, PUBLIC, Outward
from quarterdeck.engine.settings import LogSettings
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer
from quarterdeck.runtime import Keel, Room


def endings(keel: Keel) -> tuple[sessions.Ender, sessions.Finisher]:
    """How sessions are ended, by whichever room, and how an ending is seen through."""
    ender = sessions.Ender(keel.settings.section(SessionSettings).cascade_chunk)
    return ender, sessions.Finisher(
        keel.lanes.writing("terminate", ender.terminate).submit,
        keel.lanes.writing("zone-stop", ender.stop_zone).submit,
        keel.lanes.writing("settle", ender.settle).submit,
    )


async def zones_and_sessions(
    keel: Keel, finisher: sessions.Finisher, check_bearer: Callable[[Caller], Awaitable[None]]
) -> Room:
    lanes, limits = keel.lanes, keel.settings.section(Limits)
    told = keel.settings.section(SessionSettings)
    spawner = sessions.Spawner(limits)
    put_zone = lanes.writing("zone", sessions.guarded(zones.put))
    show_zone = lanes.reading("zone-show", sessions.guarded(zones.show, writes=False))
    freeze_zone = lanes.writing("zone-freeze", sessions.guarded(zones.freeze))
    spawn = lanes.writing("spawn", spawner.spawn)
    hold = lanes.writing("hold", sessions.hold)
    recount = lanes.writing("recount", sessions.recount)
    show_session = lanes.reading("session-show", sessions.show)
    await put_zone.submit(PutZone(DEFAULT_ZONE, None, None, "server"))
    zone_desk = ZoneDesk(keel.everywhere, limits, put_zone.submit, show_zone.submit, freeze_zone.submit, check_bearer)
    session_desk = SessionDesk(
        keel.engine, spawn.submit, hold.submit, show_session.submit, finisher, sessions.Explainer(spawner)
    )
    cleaning_ms = keel.settings.section(LogSettings).retention_cleanup_interval_ms
    return Room(
        [*zone_routes.routes(zone_desk), *session_routes.routes(session_desk)],
        [
            *session_sweeps(keel.everywhere, finisher, told, cleaning_ms),
            Reconciler(keel.everywhere, recount.submit).sweep(told.reconcile_interval_ms),
            KeyRetention(keel.everywhere, told.session_retention_days, cleaning_ms).sweep(),
        ],
    )


def api_keys(keel: Keel, authenticator: Authenticator) -> Room:
    create = keel.lanes.writing("key-create", keys.create)
    revoke = keel.lanes.writing("key-revoke", keys.revoke)
    authenticator.believes_keys(keel.lanes.reading("key-find", keys.find).submit)
    usual_scopes = (keel.settings.section(AuthSettings).lifecycle_scope,)
    return Room(key_routes.routes(KeyDesk(keel.engine, usual_scopes, create.submit, revoke.submit)))


def push_secrets(issuer: LocalIssuer) -> Secrets:
    """Of services that are pushed to: whoever shares the signing key finds the same."""
    return secrets_from(issuer.derive("push secrets"))


def the_services(keel: Keel, secrets: Secrets) -> Room:
    private_allowed = keel.settings.section(ServiceSettings).push_private_addresses
    registrar = services.Registrar(private_allowed=private_allowed)
    changer = services.Changer(private_allowed=private_allowed)
    desk = ServiceDesk(
        keel.engine,
        secrets,
        keel.lanes.writing("service-register", registrar.register).submit,
        keel.lanes.writing("service-change", changer.change).submit,
        keel.lanes.writing("service-heartbeat", services.beat).submit,
        keel.lanes.writing("service-unregister", services.unregister).submit,
        keel.lanes.reading("service-show", services.show).submit,
    )
    forget = keel.lanes.writing("service-forget", services.forget)
    return Room(
        service_routes.routes(desk),
        service_sweeps(
            keel.everywhere,
            invocations.services_left_alone,
            forget.submit,
            keel.settings.section(ServiceSettings),
            keel.settings.section(LogSettings).retention_cleanup_interval_ms,
        ),
    )


def the_delegations(keel: Keel, ender: sessions.Ender, finisher: sessions.Finisher) -> Room:
    lanes, told = keel.lanes, keel.settings.section(DelegationSettings)
    desk = DelegationDesk(
        keel.engine,
        lanes.writing("delegate", delegations.delegate).submit,
        lanes.writing("revoke", delegations.Revoker(ender).revoke).submit,
        lanes.reading("delegation-show", sessions.guarded(delegations.show, writes=False)).submit,
        finisher.finish,
    )
    expire = lanes.writing("delegation-expire", delegations.expire)
    cleaning_ms = keel.settings.section(LogSettings).retention_cleanup_interval_ms
    return Room(delegation_routes.routes(desk), delegation_sweeps(keel.everywhere, expire.submit, told, cleaning_ms))


def invocations_room(keel: Keel, secrets: Secrets | None) -> Room:
    """With the secrets to sign by, what is to be pushed is pushed."""
    told = keel.settings.section(InvocationSettings)
    waiters, poll_seconds = invocations.Waiters(), told.claim_poll_ms / 1000
    look = invocations.Look(keel.engine, waiters, poll_seconds)
    exchange = invocations.Exchange(told.lease_ms, waiters)
    lane: Lane[Command, Outcome] = keel.lanes.writing("invocation", exchange.run)
    settle = keel.lanes.writing("invocation-settle", invocations.settle)
    show = keel.lanes.reading("invocation-show", invocations.show)
    desk = InvocationDesk(keel.engine, lane.submit, show.submit, waiters, told)
    waiters.unwanted = desk.release
    pushers = [] if secrets is None else [the_pusher(keel, lane.submit, secrets)]
    keel.metrics.gauge("quarterdeck_claims_waiting", "Claims that wait for work", "invocations", waiters.__len__)
    return Room(
        invocation_routes.routes(desk),
        invocation_sweeps(
            keel.everywhere,
            lane.submit,
            settle.submit,
            told,
            keel.settings.section(LogSettings).retention_cleanup_interval_ms,
        ),
        runs=[Lookout(keel.wakes, waiters, look, poll_seconds, "invocation-lookout"), *pushers],
        on_drain=[waiters.close, *(pusher.drain for pusher in pushers)],
    )


def the_pusher(keel: Keel, submit: Callable[[Command], Awaitable[Outcome]], secrets: Secrets) -> Pusher:
    settings = keel.settings
    guard = LAB if settings.section(ServiceSettings).push_private_addresses else PUBLIC
    means = Means(keel.engine, keel.everywhere, keel.wakes, submit, Outward(guard), secrets)
    pusher = Pusher(means, settings.section(InvocationSettings), settings.server.shutdown_grace_ms / 1000)
    keel.metrics.gauge("quarterdeck_pushes_under_way", "Pushes under way", "invocations", pusher.__len__)
    for code in CODES:
        keel.metrics.counter(
            "quarterdeck_pushes", "Pushes, by what came of them", code, partial(pusher.counts.__getitem__, code)
        )
    return pusher
