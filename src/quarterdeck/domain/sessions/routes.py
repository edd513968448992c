"""Routes for sessions."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from quarterdeck.core import idempotency
from quarterdeck.core.caller import ADMIN, LIFECYCLE
from quarterdeck.core.errors import Conflict, Invalid
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import Listing, Page, PageQuery
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.sessions.model import (
    ChildrenQuery,
    ExplainSpawnQuery,
    ListQuery,
    Receipt,
    Resumed,
    Session,
    SessionExplanation,
    SessionFilter,
    SessionRef,
    SessionTree,
    SessionView,
    Spawn,
    SpawnBody,
    Spawned,
    SpawnExplanation,
    StopQuery,
    StopZone,
    Suspend,
    Suspended,
    SuspendResult,
    Terminate,
    TerminateQuery,
    TerminateResult,
    Verb,
)
from quarterdeck.domain.sessions.operations import reads
from quarterdeck.domain.sessions.operations.explain import Explainer
from quarterdeck.domain.sessions.operations.terminate import CascadeRunner
from quarterdeck.domain.sessions.rules import admission, states
from quarterdeck.domain.zones.model import DEFAULT_ZONE
from quarterdeck.engine.transaction import Engine

LISTING = Listing[Session]("agents")


@dataclass(frozen=True, slots=True)
class SessionHandlers:
    engine: Engine
    submit_spawn: Callable[[Spawn], Awaitable[Spawned]]
    submit_suspend: Callable[[Suspend], Awaitable[SuspendResult]]
    submit_show: Callable[[SessionRef], Awaitable[Session]]
    cascade_runner: CascadeRunner
    explainer: Explainer

    async def spawn(self, call: Call[SpawnBody, None]) -> Reply[SessionView]:
        spawned = await self.submit_spawn(_spawn_command(call))
        return Reply(states.view(spawned.session), 201 if spawned.created else 200)

    async def show(self, call: Call[None, None]) -> SessionView:
        return states.view(await self.submit_show(_session_ref(call)))

    async def list_sessions(self, call: Call[None, ListQuery]) -> Reply[Page[SessionView]]:
        query = call.query
        filters = SessionFilter(
            **LISTING.page_fields(call),
            status=query.status,
            application_id=query.application_id,
            parent_id=query.parent_id,
            root_id=query.root_id,
        )
        return await self._list(call, filters)

    async def list_children(self, call: Call[None, ChildrenQuery]) -> Reply[Page[SessionView]]:
        query = call.query
        await self.submit_show(_session_ref(call))
        filters = SessionFilter(**LISTING.page_fields(call), status=query.status, parent_id=call.params["id"])
        return await self._list(call, filters)

    async def show_tree(self, call: Call[None, None]) -> SessionTree:
        sessions = await self.engine.read(lambda tx: reads.list_subtree(tx, _session_ref(call)), zones=call.zones)
        return SessionTree(call.params["id"], [states.view(session) for session in sessions])

    async def suspend(self, call: Call[None, None]) -> Suspended:
        return Suspended(await self._set_suspended(call, Verb.SUSPEND))

    async def resume(self, call: Call[None, None]) -> Resumed:
        return Resumed(await self._set_suspended(call, Verb.RESUME))

    async def terminate(self, call: Call[None, TerminateQuery]) -> Reply[Receipt | None]:
        query = call.query
        command = Terminate(call.zone_id, call.params["id"], query.reason, call.caller, call.trace)
        started = time.monotonic()
        result = await self.cascade_runner.terminate(command)
        return Reply(await self._build_receipt(call, result, started)) if query.receipt else Reply(None, 204)

    async def stop_zone(self, call: Call[None, StopQuery]) -> Receipt:
        started = time.monotonic()
        result = await self.cascade_runner.stop_zone(
            StopZone(call.zone_id, call.query.reason, call.caller, trace=call.trace)
        )
        return await self._build_receipt(call, result, started)

    async def end_zone(self, call: Call[None, TerminateQuery]) -> Reply[Receipt | None]:
        query = call.query
        if call.zone_id == DEFAULT_ZONE:
            raise Conflict("zone_is_default", "The zone 'default' cannot be deleted. Stop or freeze it instead.")
        started = time.monotonic()
        result = await self.cascade_runner.stop_zone(
            StopZone(call.zone_id, query.reason, call.caller, ends_zone=True, trace=call.trace)
        )
        return Reply(await self._build_receipt(call, result, started)) if query.receipt else Reply(None, 204)

    async def explain(self, call: Call[None, None]) -> SessionExplanation:
        return await self.engine.read(
            lambda tx: self.explainer.explain_session(tx, _session_ref(call), call.caller), zones=call.zones
        )

    async def explain_spawn(self, call: Call[None, ExplainSpawnQuery]) -> SpawnExplanation:
        query = call.query
        command = Spawn("", call.zone_id, call.caller, query.application_id, "", query.parent_id)
        return await self.engine.read(lambda tx: self.explainer.explain_spawn(tx, command), zones=call.zones)

    async def _set_suspended(self, call: AnyCall, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> int:
        result = await self.submit_suspend(Suspend(call.zone_id, call.params["id"], verb, call.caller, call.trace))
        return result.changed

    async def _build_receipt(self, call: AnyCall, result: TerminateResult, started: float) -> Receipt:
        duration_ms = round((time.monotonic() - started) * 1000)
        return await self.engine.read(lambda tx: reads.build_receipt(tx, result, duration_ms), zones=call.zones)

    async def _list(self, call: Call[None, PageQuery], filters: SessionFilter) -> Reply[Page[SessionView]]:
        rows = await self.engine.read(lambda tx: reads.list_sessions(tx, filters), zones=call.zones)
        return LISTING.reply(call, rows, states.view, Page)


def _session_ref(call: AnyCall) -> SessionRef:
    return SessionRef(call.zone_id, call.params["id"], call.caller.bearer)


def _spawn_command(call: Call[SpawnBody, None]) -> Spawn:
    """Build the command from the body, the defaults from the token, the idempotency key and the request digest."""
    body = call.body
    sid = body.session_sid if body.session_sid is not None else call.caller.sid
    if not sid:
        raise Invalid(
            "session_sid_required", "Send `session_sid`, or use a token with a `sid` claim.", field="session_sid"
        )
    if not call.caller.can_act_for(body.application_id, "spawn_for"):
        raise states.ownership_required(body.application_id)
    key = idempotency.request_key(call.idempotency_key, body.idempotency_key)
    normalized = msgspec.structs.replace(body, session_sid=sid, idempotency_key=None) if key is not None else None
    return Spawn(
        id=new_id(),
        zone_id=call.zone_id,
        caller=call.caller,
        application_id=body.application_id,
        session_sid=sid,
        parent_id=body.parent_id,
        kind=body.kind,
        capabilities=_to_json(body.capabilities) if body.capabilities else "[]",
        metadata=_to_json(body.metadata) if body.metadata else "{}",
        ttl_seconds=body.ttl_seconds,
        key=key,
        digest=idempotency.request_digest(normalized) if normalized else "",
        trace=call.trace,
    )


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


SUSPEND_DESCRIPTION = (
    "Sets the suspend flag. `suspended` counts the sessions whose state changed: 0 if an ancestor's flag already "
    "suspended them. Suspended sessions still count against quotas, their TTL keeps running, and they cannot have new "
    "children."
)
RESUME_DESCRIPTION = (
    "Clears the suspend flag. `resumed` counts the sessions that became active. Others are still suspended by another "
    "flag."
)


def routes(handlers: SessionHandlers) -> list[Route]:
    base_path = "/zones/{zone}/agents"
    session_path = base_path + "/{id}"
    tags = ("sessions",)
    not_found_errors = ("agent_not_found",)
    owner_errors = (*not_found_errors, "application_ownership_required")
    return [
        Route(
            "POST", base_path, handlers.spawn, "Spawn a session", LIFECYCLE, status=201, tags=tags,
            description="A repeat with the same Idempotency-Key returns 200 and the same session while it is live.",
            errors=("session_sid_required", "application_ownership_required", "parent_not_found",
                    "parent_ownership_required", "agent_suspended", "idempotency_key_conflict", "zone_frozen",
                    "zone_not_found", *(bound.code for bound in admission.BOUNDS)),
        ),
        Route(
            "GET", base_path, handlers.list_sessions, "List sessions, newest first", LIFECYCLE,
            errors=("invalid_cursor",), tags=tags,
        ),
        Route("GET", session_path, handlers.show, "Show a session", LIFECYCLE, errors=not_found_errors, tags=tags),
        Route(
            "GET", session_path + "/children", handlers.list_children, "List a session's children, newest first",
            LIFECYCLE, errors=(*not_found_errors, "invalid_cursor"), tags=tags,
        ),
        Route(
            "GET", session_path + "/tree", handlers.show_tree, "Show a session with its subtree", LIFECYCLE,
            errors=not_found_errors, tags=tags,
        ),
        *(
            Route(
                method, f"{session_path}/{verb}", handler, summary, LIFECYCLE, tags=tags,
                errors=(*owner_errors, problem), description=description,
            )
            for verb, handler, summary, problem, description in (
                ("suspend", handlers.suspend, "Suspend a session and its subtree",
                 "agent_not_found_or_not_active", SUSPEND_DESCRIPTION),
                ("resume", handlers.resume, "Resume a suspended session",
                 "agent_not_found_or_not_suspended", RESUME_DESCRIPTION),
            )
            for method in ("POST", "PATCH")
        ),
        Route(
            "DELETE", session_path, handlers.terminate, "Terminate a session and its subtree", LIFECYCLE, status=204,
            errors=owner_errors, tags=tags,
            description="Returns when the whole subtree is terminated; a concurrent request joins the first. A "
            "repeated request also returns 204. With `receipt=true` the response is 200 with a receipt.",
        ),
        Route(
            "GET", session_path + "/explain", handlers.explain, "Explain the state of a session", LIFECYCLE,
            errors=not_found_errors, tags=tags,
        ),
        Route(
            "GET", "/zones/{zone}/explain/spawn", handlers.explain_spawn, "Explain whether a spawn would be admitted",
            LIFECYCLE, errors=("zone_not_found",), tags=tags,
        ),
        Route(
            "POST", "/zones/{zone}/stop", handlers.stop_zone, "Freeze a zone and terminate all its sessions", ADMIN,
            errors=("zone_not_found",), tags=("zones",),
            description="An emergency stop. The zone stays frozen until it is thawed.",
        ),
        Route(
            "DELETE", "/zones/{zone}", handlers.end_zone, "End a zone and everything in it", ADMIN, status=204,
            errors=("zone_not_found", "zone_is_default"), tags=("zones",),
            description="Permanent: the history of the zone stays readable, and its id is never reused. A repeated "
            "request also returns 204.",
        ),
    ]  # fmt: skip
