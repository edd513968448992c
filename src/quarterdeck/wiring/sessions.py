"""Builds the components for zones, sessions, API keys, services and delegations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quarterdeck.core.caller import Caller
from quarterdeck.core.webhook_signing import SecretDeriver, secret_deriver
from quarterdeck.domain.api_keys import operations as keys, routes as key_routes
from quarterdeck.domain.api_keys.routes import KeyHandlers
from quarterdeck.domain.delegations import operations as delegations, routes as delegation_routes
from quarterdeck.domain.delegations.model import DelegationSettings
from quarterdeck.domain.delegations.routes import DelegationHandlers
from quarterdeck.domain.delegations.sweeps import sweeps as delegation_sweeps
from quarterdeck.domain.invocations import operations as invocations
from quarterdeck.domain.services import operations as services, routes as service_routes
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.services.routes import ServiceHandlers
from quarterdeck.domain.services.sweeps import sweeps as service_sweeps
from quarterdeck.domain.sessions import operations as sessions, routes as session_routes
from quarterdeck.domain.sessions.model import SessionSettings
from quarterdeck.domain.sessions.routes import SessionHandlers
from quarterdeck.domain.sessions.sweeps import CountReconciler, sweeps as session_sweeps
from quarterdeck.domain.zones import operations as zones, routes as zone_routes
from quarterdeck.domain.zones.model import DEFAULT_ZONE, Limits, PutZone
from quarterdeck.domain.zones.routes import ZoneHandlers
from quarterdeck.engine.idempotency import KeyRetention
from quarterdeck.engine.settings import LogSettings
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer
from quarterdeck.runtime import Component, Runtime


def build_cascades(runtime: Runtime) -> tuple[sessions.Terminator, sessions.CascadeRunner]:
    """Build the terminator that all components share, and the runner that completes cascades."""
    terminator = sessions.Terminator(runtime.settings.section(SessionSettings).cascade_chunk)
    return terminator, sessions.CascadeRunner(
        runtime.lanes.add_write_lane("terminate", terminator.terminate_sessions).submit,
        runtime.lanes.add_write_lane("zone-stop", terminator.stop_zones).submit,
        runtime.lanes.add_write_lane("settle", terminator.finish_cascades).submit,
    )


async def build_zones_and_sessions(
    runtime: Runtime, cascades: sessions.CascadeRunner, check_bearer: Callable[[Caller], Awaitable[None]]
) -> Component:
    lanes, limits = runtime.lanes, runtime.settings.section(Limits)
    settings = runtime.settings.section(SessionSettings)
    spawner = sessions.Spawner(limits)
    put_zone = lanes.add_write_lane("zone", sessions.with_bearer_check(zones.put_zones))
    show_zone = lanes.add_read_lane("zone-show", sessions.with_bearer_check(zones.show_zones, writes=False))
    set_zone_frozen = lanes.add_write_lane("zone-freeze", sessions.with_bearer_check(zones.set_zones_frozen))
    spawn = lanes.add_write_lane("spawn", spawner.spawn)
    suspend = lanes.add_write_lane("hold", sessions.suspend_or_resume)
    repair_counts = lanes.add_write_lane("recount", sessions.repair_zone_counts)
    show_session = lanes.add_read_lane("session-show", sessions.show_sessions)
    await put_zone.submit(PutZone(DEFAULT_ZONE, None, None, "server"))
    zone_handlers = ZoneHandlers(
        runtime.cross_zone_engine, limits, put_zone.submit, show_zone.submit, set_zone_frozen.submit, check_bearer
    )
    session_handlers = SessionHandlers(
        runtime.engine, spawn.submit, suspend.submit, show_session.submit, cascades, sessions.Explainer(spawner)
    )
    cleanup_interval_ms = runtime.settings.section(LogSettings).retention_cleanup_interval_ms
    return Component(
        [*zone_routes.routes(zone_handlers), *session_routes.routes(session_handlers)],
        [
            *session_sweeps(runtime.cross_zone_engine, cascades, settings, cleanup_interval_ms),
            CountReconciler(runtime.cross_zone_engine, repair_counts.submit).sweep(settings.reconcile_interval_ms),
            KeyRetention(runtime.cross_zone_engine, settings.session_retention_days, cleanup_interval_ms).sweep(),
        ],
    )


def build_api_keys(runtime: Runtime, authenticator: Authenticator) -> Component:
    create = runtime.lanes.add_write_lane("key-create", keys.create_keys)
    revoke = runtime.lanes.add_write_lane("key-revoke", keys.revoke_keys)
    authenticator.set_api_key_lookup(runtime.lanes.add_read_lane("key-find", keys.authenticate_keys).submit)
    default_scopes = (runtime.settings.section(AuthSettings).lifecycle_scope,)
    return Component(key_routes.routes(KeyHandlers(runtime.engine, default_scopes, create.submit, revoke.submit)))


def push_secret_deriver(issuer: LocalIssuer) -> SecretDeriver:
    """Derive the secrets that sign pushes to services. Servers with the same signing key derive the same secrets."""
    return secret_deriver(issuer.derive_secret("push secrets"))


def build_services(runtime: Runtime, derive_secret: SecretDeriver) -> Component:
    private_allowed = runtime.settings.section(ServiceSettings).push_private_addresses
    registrar = services.Registrar(private_allowed=private_allowed)
    updater = services.Updater(private_allowed=private_allowed)
    handlers = ServiceHandlers(
        runtime.engine,
        derive_secret,
        runtime.lanes.add_write_lane("service-register", registrar.register).submit,
        runtime.lanes.add_write_lane("service-change", updater.update).submit,
        runtime.lanes.add_write_lane("service-heartbeat", services.record_heartbeats).submit,
        runtime.lanes.add_write_lane("service-unregister", services.unregister).submit,
        runtime.lanes.add_read_lane("service-show", services.show).submit,
    )
    delete_past_retention = runtime.lanes.add_write_lane("service-forget", services.delete_past_retention)
    return Component(
        service_routes.routes(handlers),
        service_sweeps(
            runtime.cross_zone_engine,
            invocations.find_unreferenced_services,
            delete_past_retention.submit,
            runtime.settings.section(ServiceSettings),
            runtime.settings.section(LogSettings).retention_cleanup_interval_ms,
        ),
    )


def build_delegations(runtime: Runtime, terminator: sessions.Terminator, cascades: sessions.CascadeRunner) -> Component:
    lanes, settings = runtime.lanes, runtime.settings.section(DelegationSettings)
    handlers = DelegationHandlers(
        runtime.engine,
        lanes.add_write_lane("delegate", delegations.create_edges).submit,
        lanes.add_write_lane("revoke", delegations.Revoker(terminator).revoke).submit,
        lanes.add_read_lane("delegation-show", sessions.with_bearer_check(delegations.show, writes=False)).submit,
        cascades.finish_cascade,
    )
    expire = lanes.add_write_lane("delegation-expire", delegations.expire_edges)
    cleanup_interval_ms = runtime.settings.section(LogSettings).retention_cleanup_interval_ms
    return Component(
        delegation_routes.routes(handlers),
        delegation_sweeps(runtime.cross_zone_engine, expire.submit, settings, cleanup_interval_ms),
    )
