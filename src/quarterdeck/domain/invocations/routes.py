"""Routes for invocations."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core import idempotency
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Conflict, NotFound, Problem, Unauthenticated
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import Listing, Page
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.invocations.model import (
    Cancel,
    CancelInvocationBody,
    Claim,
    ClaimInvocationsBody,
    Complete,
    CompleteInvocationBody,
    CompleteInvocationItem,
    CompleteInvocationsBody,
    Enqueue,
    EnqueueBody,
    Heartbeat,
    Invocation,
    InvocationExplanation,
    InvocationFilter,
    InvocationHeartbeatBody,
    InvocationHeartbeatView,
    InvocationSettings,
    InvocationView,
    ItemList,
    ItemView,
    LeaseList,
    LeaseView,
    ListInvocationsQuery,
    Release,
    ShowInvocation,
    Start,
    StartInvocationBody,
    TokensBody,
)
from quarterdeck.domain.invocations.operations import reads
from quarterdeck.domain.invocations.operations.batch import SubmitInvocationCommand
from quarterdeck.domain.invocations.operations.long_poll import ClaimedItems, ClaimPolls, wait_for_invocations
from quarterdeck.domain.invocations.rules import states
from quarterdeck.domain.invocations.rules.errors import key_required
from quarterdeck.engine.long_poll import wait_for_claim
from quarterdeck.engine.transaction import Engine

log = logging.getLogger("quarterdeck.invocations")
LISTING = Listing[Invocation]("invocations")
ATTEMPT_ERRORS = ("stale_attempt", "attempt_token_required", "invocation_not_completable")


@dataclass(frozen=True, slots=True)
class InvocationHandlers:
    engine: Engine
    submit: SubmitInvocationCommand
    submit_show: Callable[[ShowInvocation], Awaitable[Invocation]]
    polls: ClaimPolls
    settings: InvocationSettings

    # -- callers -------------------------------------------------------------------------------------------------

    async def enqueue(self, call: Call[EnqueueBody, None]) -> Reply[InvocationView]:
        result = await self.submit(_enqueue_command(call))
        return Reply(states.view(result.invocation), 201 if result.created else 200)

    async def show(self, call: Call[None, None]) -> InvocationView:
        return states.view(await self.submit_show(_show_command(call)))

    async def list_invocations(self, call: Call[None, ListInvocationsQuery]) -> Reply[Page[InvocationView]]:
        query = call.query
        filters = InvocationFilter(
            **LISTING.page_fields(call),
            status=query.status,
            service_id=query.service_id,
            source_session_id=query.source_session_id,
            target_session_id=query.target_session_id,
        )
        rows = await self.engine.read(lambda tx: reads.list_invocations(tx, filters), zones=call.zones)
        return LISTING.reply(call, rows, states.view, Page)

    async def cancel(self, call: Call[CancelInvocationBody, None]) -> InvocationView:
        return states.view(
            await self.submit(Cancel(**call.caller_fields, id=call.params["id"], reason=call.body.reason))
        )

    async def explain(self, call: Call[None, None]) -> InvocationExplanation:
        return await self.engine.read(lambda tx: reads.explain(tx, _show_command(call)), zones=call.zones)

    # -- workers -------------------------------------------------------------------------------------------------

    async def claim(self, call: Call[ClaimInvocationsBody, None]) -> Reply[LeaseList]:
        body = call.body
        command = Claim(
            **call.caller_fields,
            service_id=call.params["service"],
            limit=body.max,
            attempt_tokens=tuple(_new_token() for _ in range(body.max)),
            claim_id=body.claim_id,
        )
        wait_ms = min(body.wait_ms, self.settings.claim_wait_max_ms)
        if wait_ms:
            claimed = await wait_for_invocations(command, self._submit_claim, self.polls, wait_ms / 1000)
        else:
            claimed = await self._submit_claim(command)
        leases = LeaseList([states.lease_view(row) for row in claimed])
        return Reply(leases, on_undelivered=lambda: self.polls.on_undelivered(claimed))

    async def _submit_claim(self, command: Claim) -> ClaimedItems:
        return await wait_for_claim(self.submit(command), lambda claimed: claimed.items, self.polls)

    def release_undelivered(self, claimed: Sequence[Invocation]) -> None:
        """Release leases whose response was not delivered. The attempts do not count."""
        for row in claimed:
            command = Release(
                zone_id=row.zone_id,
                id=row.id,
                attempt_token=row.attempt_token or "",
                lease_expires_at=row.lease_expires_at,
            )
            self.submit(command).add_done_callback(_log_release_failure)

    async def start(self, call: Call[StartInvocationBody, None]) -> LeaseView:
        command = Start(
            **call.caller_fields, id=call.params["id"], attempt_token=_new_token(), claim_id=call.body.claim_id
        )
        return states.lease_view(await self.submit(command))

    async def complete(self, call: Call[CompleteInvocationBody, None]) -> InvocationView:
        return states.view(await self.submit(_complete_command(call, call.params["id"], call.body)))

    async def heartbeat(self, call: Call[InvocationHeartbeatBody, None]) -> InvocationHeartbeatView:
        row = await self.submit(
            Heartbeat(**call.caller_fields, id=call.params["id"], attempt_token=call.body.attempt_token)
        )
        return InvocationHeartbeatView(row.cancel_requested_at is not None, iso(row.lease_expires_at or row.updated_at))

    async def complete_many(self, call: Call[CompleteInvocationsBody, None]) -> ItemList:
        return await self._submit_many([_complete_command(call, item.id, item) for item in call.body.items])

    async def heartbeat_many(self, call: Call[TokensBody, None]) -> ItemList:
        return await self._submit_many(
            [Heartbeat(**call.caller_fields, id=item.id, attempt_token=item.attempt_token) for item in call.body.items]
        )

    async def release_many(self, call: Call[TokensBody, None]) -> ItemList:
        return await self._submit_many(
            [Release(**call.caller_fields, id=item.id, attempt_token=item.attempt_token) for item in call.body.items]
        )

    # -- shared --------------------------------------------------------------------------------------------------

    async def _submit_many(self, commands: Sequence[Complete | Heartbeat | Release]) -> ItemList:
        """Each item has its own outcome; a refused item does not affect the others."""
        outcomes = await asyncio.gather(*(self.submit(command) for command in commands), return_exceptions=True)
        if unauthenticated := [outcome for outcome in outcomes if isinstance(outcome, Unauthenticated)]:
            # All items have the same caller: if its credential is invalid for one, it is invalid for all.
            raise unauthenticated[0]
        return ItemList([_item_view(command, outcome) for command, outcome in zip(commands, outcomes, strict=True)])


def _log_release_failure(done: asyncio.Future[Invocation]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, NotFound | Conflict):
        # The attempt then ends when its lease expires, and counts as failed.
        log.warning("could not release an undelivered lease: %r", error)


def _show_command(call: AnyCall) -> ShowInvocation:
    return ShowInvocation(call.zone_id, call.params["id"], call.caller.bearer)


def _new_token() -> str:
    return secrets.token_urlsafe(16)


def _enqueue_command(call: Call[EnqueueBody, None]) -> Enqueue:
    body = call.body
    key = idempotency.request_key(call.idempotency_key, body.idempotency_key)
    if key is None:
        raise key_required()
    source = body.source_session_id
    if source is None and call.caller.zone_id == call.zone_id:
        source = call.caller.session_id
    normalized = msgspec.structs.replace(body, idempotency_key=None, source_session_id=source)
    return Enqueue(
        **call.caller_fields,
        id=new_id(),
        service_id=body.service_id,
        idempotency_key=key,
        request_digest=idempotency.request_digest(normalized),
        method=body.method,
        params=_json_text(body.params),
        metadata=_json_text(body.metadata),
        source_session_id=source,
        target_session_id=body.target_session_id,
        timeout_ms=body.timeout_ms,
        retry_policy=body.retry_policy,
    )


def _complete_command(
    call: AnyCall, invocation_id: str, report: CompleteInvocationBody | CompleteInvocationItem
) -> Complete:
    return Complete(
        **call.caller_fields,
        id=invocation_id,
        status=report.status,
        result=_json_text(report.result) if report.status == "succeeded" or report.result is not None else None,
        error=_json_text(report.error) if report.status == "failed" or report.error is not None else None,
        retryable=report.retryable,
        attempt_token=report.attempt_token,
    )


def _item_view(command: Complete | Heartbeat | Release, outcome: Invocation | BaseException) -> ItemView:
    if isinstance(outcome, Problem):
        error = {"error": outcome.code, "detail": outcome.detail, "status": outcome.status}
        return ItemView(command.id, error=error)
    if isinstance(outcome, BaseException):
        raise outcome
    if not isinstance(command, Heartbeat):
        return ItemView(command.id, outcome.status)
    lease_expires_at = iso(outcome.lease_expires_at or outcome.updated_at)
    return ItemView(command.id, outcome.status, outcome.cancel_requested_at is not None, lease_expires_at)


def _json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _post_and_patch_routes(handlers: InvocationHandlers, path: str) -> list[Route]:
    """Routes that accept PATCH as well as POST, because existing clients send PATCH."""
    tags = ("invocations",)
    worker_errors = ("invocation_not_found", "service_ownership_required")
    return [
        route
        for method in ("POST", "PATCH")
        for route in (
            Route(
                method, path + "/start", handlers.start, "Start an attempt of an invocation by its id", LIFECYCLE,
                tags=tags, errors=(*worker_errors, "invocation_not_startable", "agent_suspended"),
                description="Only the first request gets the attempt; a repeat with the same `claim_id` gets it again.",
            ),
            Route(
                method, path + "/complete", handlers.complete, "Report the outcome of an attempt", LIFECYCLE,
                errors=(*worker_errors, *ATTEMPT_ERRORS), tags=tags,
                description="A failed attempt is retried, unless `retryable` is false or it was the last. "
                "A repeat with the same token gets the same response.",
            ),
            Route(
                method, path + "/cancel", handlers.cancel, "Cancel an invocation", LIFECYCLE, tags=tags,
                errors=("invocation_not_found", "invoker_ownership_required", "invocation_not_cancelable"),
                description="A pending invocation is canceled at once; a running one when its holder reports, its "
                "lease expires or its deadline passes.",
            ),
        )
    ]  # fmt: skip


def routes(handlers: InvocationHandlers) -> list[Route]:
    base_path = "/zones/{zone}/invocations"
    invocation_path = base_path + "/{id}"
    tags = ("invocations",)
    not_found_errors = ("invocation_not_found",)
    worker_errors = (*not_found_errors, "service_ownership_required")
    attempt_errors = (*worker_errors, *ATTEMPT_ERRORS)
    return [
        Route(
            "POST", base_path, handlers.enqueue, "Invoke a service", LIFECYCLE, status=201, tags=tags,
            description="201, or 200 with the existing invocation if the idempotency key was already used.",
            errors=("idempotency_key_required", "idempotency_key_conflict", "agent_service_not_found",
                    "agent_session_not_found", "agent_suspended", "invoker_ownership_required", "zone_ended",
                    "zone_not_found"),
        ),
        Route(
            "GET", base_path, handlers.list_invocations, "List invocations, newest first", LIFECYCLE,
            errors=("invalid_cursor",), tags=tags,
        ),
        Route(
            "POST", base_path + "/complete", handlers.complete_many, "Report the outcomes of many attempts", LIFECYCLE,
            tags=tags, description="Each item has its own outcome.",
        ),
        Route(
            "POST", base_path + "/heartbeat", handlers.heartbeat_many, "Extend the leases of many attempts", LIFECYCLE,
            tags=tags, description="Each item has its own outcome.",
        ),
        Route(
            "POST", base_path + "/release", handlers.release_many, "Release attempts", LIFECYCLE, tags=tags,
            description="Released attempts do not count.",
        ),
        Route(
            "GET", invocation_path, handlers.show, "Show an invocation", LIFECYCLE, errors=not_found_errors, tags=tags,
        ),
        Route(
            "GET", invocation_path + "/explain", handlers.explain, "Explain an invocation's state", LIFECYCLE,
            errors=not_found_errors, tags=tags,
        ),
        *_post_and_patch_routes(handlers, invocation_path),
        Route(
            "POST", invocation_path + "/heartbeat", handlers.heartbeat, "Extend an attempt's lease", LIFECYCLE,
            errors=attempt_errors, tags=tags,
        ),
        Route(
            "POST", "/zones/{zone}/services/{service}/claim", handlers.claim, "Claim invocations of a service",
            LIFECYCLE, is_long_poll=True, tags=tags,
            errors=("agent_service_not_found", "service_ownership_required", "service_is_pushed", "agent_suspended"),
            description="Leases up to `max` invocations to the caller; waits up to `wait_ms` if there are none. A "
            "repeat with the same `claim_id` returns the same attempts while they are running.",
        ),
    ]  # fmt: skip
