"""The rooms of the session plane."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quarterdeck.core.caller import Caller
from quarterdeck.core.webhook_signing import Secrets, secrets_from
from quarterdeck.domain.api_keys import operations as keys, routes as key_routes
from quarterdeck.domain.api_keys.routes import KeyDesk
from quarterdeck.domain.delegations import operations as delegations, routes as delegation_routes
from quarterdeck.domain.delegations.model import DelegationSettings
from quarterdeck.domain.delegations.routes import DelegationDesk
from quarterdeck.domain.delegations.sweeps import sweeps as delegation_sweeps
from quarterdeck.domain.invocations import operations as invocations
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
