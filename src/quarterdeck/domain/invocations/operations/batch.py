"""Runs one batch of invocation commands in one transaction: load, decide, persist."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from quarterdeck.core.command import R
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.invocations.model import (
    BaseInvocationCommand,
    Claim,
    ClaimedInvocations,
    Enqueue,
    Invocation,
    InvocationCommand,
    InvocationContext,
    InvocationResult,
    State,
)
from quarterdeck.domain.invocations.operations import persist
from quarterdeck.domain.invocations.operations.long_poll import ClaimPoll, ClaimPolls
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules.decider import BatchDecider, InvocationBatchInput, ServiceKey
from quarterdeck.domain.services import operations as services
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.zones import rules as zone_rules
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.long_poll import LongPoll
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

NO_INVOCATIONS = ClaimedInvocations(())
NOT_PARKED = 0
EXTRA_DUE_MAX = 64
"""Maximum older invocations of a service that a batch assigns to waiting claims, in addition to its new ones."""


class SubmitInvocationCommand(Protocol):
    def __call__(self, command: BaseInvocationCommand[R], /) -> asyncio.Future[R]: ...


class BatchRunner:
    """Runs the batches of the invocation lane, and assigns due invocations to the long polls of this process."""

    def __init__(self, lease_ms: int, polls: ClaimPolls) -> None:
        self._lease_ms = lease_ms
        self._polls = polls

    async def run(
        self, tx: Transaction, commands: Sequence[InvocationCommand]
    ) -> list[InvocationResult | Problem | Busy]:
        batch, loaded = await self._load(tx, commands)
        decider = BatchDecider(loaded)
        outcomes: list[InvocationResult | Problem | Busy] = [
            batch.problem(command) or decider.decide(command) for command in commands
        ]
        self._wait_after_commit(tx, commands, outcomes)
        self._assign_to_polls(tx, decider, commands, batch)
        await self._persist(tx, decider)
        return outcomes

    # -- load: one round trip ------------------------------------------------------------------------------------

    async def _load(
        self, tx: Transaction, commands: Sequence[InvocationCommand]
    ) -> tuple[access.Batch, InvocationBatchInput]:
        enqueues = [command for command in commands if isinstance(command, Enqueue)]
        claims = [command for command in commands if isinstance(command, Claim)]
        waiting_claims = [poll.request for polls in self._polls_for(enqueues).values() for poll in polls]
        named_refs = sorted(
            {(command.zone_id, command.id) for command in commands if not isinstance(command, Enqueue | Claim)}
        )
        session_refs, claim_refs = _session_refs(enqueues), _claim_refs([*claims, *waiting_claims])
        batch, results = await access.lock(
            tx,
            commands,
            services.load_statement(_service_refs(enqueues, claims)) if enqueues or claims else None,
            sessions.load_statement(session_refs) if session_refs else None,
            Q.invocations_of_keys(batch=_key_refs(enqueues)) if enqueues else None,
            Q.invocations_of_claims(batch=claim_refs) if claim_refs else None,
            Q.invocations_get_with_context(batch=named_refs) if named_refs else None,
            *_due_statements(_due_limits(enqueues, claims, waiting_claims)),
            waiting=waiting_claims,
        )
        service_rows, session_rows, key_rows, claim_rows, *context_rows = results
        # Rows of zones that could not be locked are dropped: the holder of the lock may be changing them now.
        rows = [row for row in decode([*key_rows, *claim_rows], Invocation) if row.zone_id in batch.zones]
        named_rows, *due_rows = (
            [pair for pair in _decode_with_context(group) if pair[0].zone_id in batch.zones] for group in context_rows
        )
        loaded = InvocationBatchInput(
            now=tx.now,
            lease_ms=self._lease_ms,
            zone_problems=zone_rules.ended_zone_problems(batch.zones.values()),
            services=services.decode_registered(service_rows),
            sessions=sessions.decode_sessions(session_rows),
            caller_sessions=batch.sessions,
            rows=[*(row for row, _ in named_rows), *rows],
            due=[row for group in due_rows for row, _ in group],
            contexts={row.ref: context for group in (named_rows, *due_rows) for row, context in group},
        )
        return batch, loaded

    def _polls_for(self, enqueues: Iterable[Enqueue]) -> dict[ServiceKey, list[ClaimPoll]]:
        """Long polls for the services of new invocations, oldest first, only as many as may get an invocation."""
        enqueue_counts = Counter((enqueue.zone_id, enqueue.service_id) for enqueue in enqueues)
        return {ref: self._polls.waiting(ref)[: count + EXTRA_DUE_MAX] for ref, count in sorted(enqueue_counts.items())}

    # -- long polls and persist ----------------------------------------------------------------------------------

    def _wait_after_commit(
        self,
        tx: Transaction,
        commands: Sequence[InvocationCommand],
        outcomes: Sequence[InvocationResult | Problem | Busy],
    ) -> None:
        """Let claims that got nothing wait for work.

        They are added as part of the commit. If they were added later, another batch of this process could create an
        invocation in between, and the claims would miss it.
        """
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(command, Claim) and isinstance(command.waiter, LongPoll) and outcome == NO_INVOCATIONS:
                tx.on_commit(partial(self._polls.add, command.waiter))

    def _assign_to_polls(
        self, tx: Transaction, decider: BatchDecider, commands: Sequence[InvocationCommand], batch: access.Batch
    ) -> None:
        """Claim due invocations for long polls, in the transaction that creates some of them."""
        for ref, polls in self._polls_for(command for command in commands if isinstance(command, Enqueue)).items():
            for poll in polls:
                if not decider.has_due(ref):
                    break
                claimed = decider.decide(poll.request) if batch.can_decide(poll.request) else None
                if isinstance(claimed, ClaimedInvocations) and claimed.items:
                    tx.on_commit(partial(self._polls.deliver, poll, claimed.items))
                else:
                    # The claim is refused, none of the due invocations can start, or the zone of the caller's session
                    # is not locked here. An empty delivery makes the poll claim again.
                    tx.on_commit(partial(self._polls.deliver, poll, ()))

    @staticmethod
    async def _persist(tx: Transaction, decider: BatchDecider) -> None:
        persist.insert_rows(tx, decider.rows.inserts())
        await persist.update_rows(tx, decider.rows.updates())
        for pending_event in decider.rows.events:
            tx.emit(persist.to_new_event(pending_event))


def _service_refs(enqueues: Iterable[Enqueue], claims: Iterable[Claim]) -> list[ServiceKey]:
    enqueued = {(command.zone_id, command.service_id) for command in enqueues}
    return sorted(enqueued | {(command.zone_id, command.service_id) for command in claims})


def _key_refs(enqueues: Iterable[Enqueue]) -> list[tuple[str, str, str]]:
    return sorted({(command.zone_id, command.service_id, command.idempotency_key) for command in enqueues})


def _claim_refs(claims: Iterable[Claim]) -> list[tuple[str, str]]:
    return sorted({(claim.zone_id, claim.claim_id) for claim in claims if claim.claim_id is not None})


def _session_refs(enqueues: Iterable[Enqueue]) -> list[Ref]:
    """The sessions that new invocations name."""
    return sorted(
        {
            (enqueue.zone_id, session_id)
            for enqueue in enqueues
            for session_id in (enqueue.source_session_id, enqueue.target_session_id)
            if session_id is not None
        }
    )


def _due_limits(
    enqueues: Iterable[Enqueue], claims: Iterable[Claim], waiting_claims: Iterable[Claim]
) -> dict[ServiceKey, int]:
    """How many due invocations of each service the batch may assign."""
    limits = Counter[ServiceKey]()
    for claim in claims:
        limits[claim.zone_id, claim.service_id] += claim.limit
    waiting_limits = Counter[ServiceKey]()
    for claim in waiting_claims:
        waiting_limits[claim.zone_id, claim.service_id] += claim.limit
    enqueue_counts = Counter((enqueue.zone_id, enqueue.service_id) for enqueue in enqueues)
    for ref, limit in waiting_limits.items():
        # A waiting claim recently found nothing, so few older invocations are due. `ReadyPollWaker` finds any others.
        limits[ref] += min(limit, enqueue_counts[ref] + EXTRA_DUE_MAX)
    return limits


def _due_statements(limits: Mapping[ServiceKey, int]) -> list[BoundStatement]:
    """One statement per size class (1, 4, 16, …), so that a large claim does not load many rows for every service."""
    batches_by_limit: dict[int, list[tuple[str, str, State, int]]] = {}
    for ref, requested in sorted(limits.items()):
        limit = 1
        while limit < requested:
            limit *= 4
        batches_by_limit.setdefault(limit, []).append((*ref, State.PENDING, NOT_PARKED))
    return [Q.invocations_due(batch=batch, limit=limit) for limit, batch in sorted(batches_by_limit.items())]


def _decode_with_context(rows: Sequence[Row]) -> list[tuple[Invocation, InvocationContext]]:
    column_count = len(Invocation.__struct_fields__)
    invocations = decode([row[:column_count] for row in rows], Invocation)
    return [*zip(invocations, decode([row[column_count:] for row in rows], InvocationContext), strict=True)]
