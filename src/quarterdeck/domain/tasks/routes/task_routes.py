"""Routes for tasks: create, read, change, claim and report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from msgspec import UNSET

from quarterdeck.core import idempotency, paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Conflict, Invalid, NotFound, Problem
from quarterdeck.core.paging import CamelPage, Listing
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.tasks.model import bodies
from quarterdeck.domain.tasks.model.commands import Archive, Cancel, Claim, Create, Release, Retry, Start, TaskUpdate
from quarterdeck.domain.tasks.model.rows import TABLE, ClaimedTask, CreatedTask, FullTask, Task, TaskSettings
from quarterdeck.domain.tasks.model.views import CreatedItems, TaskItem, TaskItems, TaskLeases, TaskView
from quarterdeck.domain.tasks.operations import dependency_reads, reads
from quarterdeck.domain.tasks.operations.batch import ClaimPolls, SubmitTaskCommand
from quarterdeck.domain.tasks.operations.error_redaction import Redactor, load_redactors
from quarterdeck.domain.tasks.operations.reads import TaskFilter, TaskLookup
from quarterdeck.domain.tasks.routes import bulk_responses, request_commands
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.dependency_graph import order_by_dependencies
from quarterdeck.domain.tasks.rules.views import to_claimed_view, to_view
from quarterdeck.engine.long_poll import wait_for_claim, wait_for_work
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.transaction import Engine

log = logging.getLogger("quarterdeck.tasks")
LISTING = Listing[FullTask]("agent-tasks")
BULK_BYTES_MAX = 16 << 20
"""A body is decoded in one step, which blocks the event loop. A larger body would noticeably delay other requests."""
SINGLE_BYTES_MAX = 4 << 20
"""Enough for a few fields of 1 MiB each."""


@dataclass(frozen=True, slots=True)
class TaskHandlers:
    engine: Engine
    submit: SubmitTaskCommand
    read_task: Callable[[TaskLookup], Awaitable[FullTask]]
    polls: ClaimPolls
    cipher: FieldCipher
    settings: TaskSettings

    # -- create and read -----------------------------------------------------------------------------------------

    async def create(self, call: Call[bodies.CreateBody, None]) -> Reply[TaskView | CreatedItems]:
        body = call.body
        key = idempotency.request_key(call.idempotency_key, None)
        if body.tasks is not UNSET:
            request_commands.check_bulk(body, body.tasks)
            return Reply(await self._create_many(call, body.tasks, key), 201)
        item = request_commands.single_item(body)
        if item.id is not None and item.id in item.depends_on:
            raise errors.dependency_cycle([item.id, item.id])
        command = request_commands.create_command(call, item, key, self.cipher)
        result = await self.submit(command)
        return Reply(await self._created_view(call, command, result), 201 if result.created else 200)

    async def _create_many(self, call: AnyCall, items: Sequence[bodies.CreateItem], key: str | None) -> CreatedItems:
        """Create each task after its dependencies. Outcomes are per task, in request order."""
        commands = self._create_commands(call, items, key)
        by_id = {command.id: command for command in commands if isinstance(command, Create)}
        order, cycles = order_by_dependencies({task_id: command.depends_on for task_id, command in by_id.items()})
        futures = {task_id: self.submit(by_id[task_id]) for task_id in order}
        response = bulk_responses.BulkResponse()
        try:
            for command in commands:
                # Each view is built as soon as its task is created, while the database is still creating later tasks.
                if isinstance(command, Problem):
                    response.add_problem(command)
                elif command.id in cycles:
                    response.add_problem(errors.dependency_cycle(cycles[command.id]))
                else:
                    await self._add_outcome(call, command, futures[command.id], response)
        except Problem:
            # Wait for all futures, because asyncio logs exceptions that are never retrieved.
            await asyncio.gather(*futures.values(), return_exceptions=True)
            raise
        return CreatedItems(response.outcomes)

    def _create_commands(
        self, call: AnyCall, items: Sequence[bodies.CreateItem], key: str | None
    ) -> list[Create | Problem]:
        commands: list[Create | Problem] = []
        seen_ids: set[str] = set()
        for index, item in enumerate(items):
            item_key = None if key is None else f"{key}#{index}"
            command = bulk_responses.try_build(
                partial(request_commands.create_command, call, item, item_key, self.cipher)
            )
            if isinstance(command, Create):
                if command.id in seen_ids:
                    command = Invalid("invalid_body", "An earlier task of this request has the same id.", field="$.id")
                else:
                    seen_ids.add(command.id)
            commands.append(command)
        return commands

    async def _add_outcome(
        self,
        call: AnyCall,
        command: Create,
        pending: asyncio.Future[CreatedTask],
        response: bulk_responses.BulkResponse,
    ) -> None:
        try:
            response.outcomes.append(await self._created_view(call, command, await pending, response))
        except Problem as problem:
            if bulk_responses.applies_to_all(problem):
                raise
            response.add_problem(problem)

    async def _created_view(
        self, call: AnyCall, command: Create, result: CreatedTask, response: bulk_responses.BulkResponse | None = None
    ) -> TaskView:
        """`response` is set only if the task is part of a bulk request."""
        if not result.created:
            limit = dependency_reads.DEPENDENCIES_MAX if response is None else dependency_reads.LISTED_DEPENDENCIES_MAX
            existing = await self.read_task(TaskLookup(call.zone_id, result.task.id, call.caller, limit))
            if response is not None and not response.reserve_bytes(existing.content.size):
                raise errors.response_too_large(existing.task.id)
            return to_view(existing, self._mask)
        full_task = FullTask(result.task, result.content or command.content, command.depends_on)
        return to_view(full_task, self._mask)

    async def get(self, call: AnyCall) -> TaskView:
        return to_view(await self.read_task(TaskLookup(call.zone_id, call.params["id"], call.caller)), self._mask)

    async def list_tasks(self, call: Call[None, bodies.ListQuery]) -> Reply[CamelPage[TaskView]]:
        return await self._list(call, None)

    async def list_agent_tasks(self, call: Call[None, bodies.ListQuery]) -> Reply[CamelPage[TaskView]]:
        return await self._list(call, call.params["id"])

    async def _list(self, call: Call[None, bodies.ListQuery], agent_id: str | None) -> Reply[CamelPage[TaskView]]:
        query = call.query
        min_priority = query.min_priority if query.priority is None else query.priority
        filters = TaskFilter(
            zone_id=call.zone_id,
            caller=call.caller,
            limit=query.limit,
            before=LISTING.start_key(query),
            status=query.status,
            priority_min=min_priority,
            priority_max=query.priority,
            task_type=query.task_type,
            agent_id=agent_id or query.agent_id,
            agent_must_exist=agent_id is not None,
            created_after=None if query.created_after is None else request_commands.to_millis(query.created_after),
            tags=tuple(tag for tag in (query.tags or "").split(",") if tag),
        )
        page = await self.engine.read(lambda tx: reads.list_tasks(tx, filters), zones=call.zones)
        next_cursor = paging.encode(LISTING.name, page.next_before) if page.next_before else None
        views = [to_view(full_task, self._mask) for full_task in page.items]
        return Reply(CamelPage(views, next_cursor), headers=call.next_link(next_cursor))

    # -- change --------------------------------------------------------------------------------------------------

    async def patch(self, call: Call[bodies.PatchBody, None]) -> TaskView:
        return await self._submit_and_view(call, request_commands.patch_command(call, call.body))

    async def cancel(self, call: Call[bodies.CancelBody, None]) -> TaskView:
        return await self._submit_and_view(
            call, Cancel(**call.caller_fields, id=call.params["id"], reason=call.body.reason)
        )

    async def retry(self, call: Call[None, None]) -> TaskView:
        return await self._submit_and_view(call, Retry(**call.caller_fields, id=call.params["id"]))

    async def archive(self, call: Call[None, None]) -> TaskView:
        return await self._submit_and_view(call, Archive(**call.caller_fields, id=call.params["id"]))

    # -- claim and report ----------------------------------------------------------------------------------------

    async def claim(self, call: Call[bodies.ClaimBody, None]) -> Reply[TaskLeases]:
        body = call.body
        command = request_commands.claim_command(call, body)
        wait_ms = min(body.wait_ms, self.settings.task_claim_wait_max_ms)
        if wait_ms:
            claimed = await wait_for_work(command, call.zone_id, self._claim, self.polls, wait_ms / 1000)
        else:
            claimed = await self._claim(command)
        leases = TaskLeases([to_claimed_view(item, partial(self._decrypt, item)) for item in claimed])
        return Reply(leases, on_undelivered=lambda: self.polls.on_undelivered(claimed))

    async def _claim(self, command: Claim) -> tuple[ClaimedTask, ...]:
        return await wait_for_claim(self.submit(command), lambda claimed: claimed.items, self.polls)

    def release_undelivered(self, claimed: Sequence[ClaimedTask]) -> None:
        """Undo a claim whose response was not delivered. Its attempts do not count."""
        for item in claimed:
            task = item.task
            command = Release(zone_id=task.zone_id, id=task.id, attempt_token=task.attempt_token or "")
            self.submit(command).add_done_callback(_log_release_failure)

    async def start(self, call: Call[bodies.StartBody, None]) -> TaskView:
        command = Start(
            **call.caller_fields,
            id=call.params["id"],
            attempt_token=request_commands.resolve_token(call, call.body.attempt_token),
        )
        return await self._submit_and_view(call, command)

    async def release(self, call: Call[bodies.StartBody, None]) -> TaskView:
        return await self._submit_and_view(call, request_commands.release_command(call, call.params["id"], call.body))

    async def progress(self, call: Call[bodies.ProgressBody, None]) -> TaskView:
        body = call.body
        body = msgspec.structs.replace(
            body, progress_id=idempotency.request_key(call.idempotency_key, body.progress_id)
        )
        return await self._submit_and_view(
            call, request_commands.progress_command(call, call.params["id"], body, self.cipher)
        )

    async def complete(self, call: Call[bodies.CompleteBody, None]) -> TaskView:
        return await self._submit_and_view(
            call, request_commands.complete_command(call, call.params["id"], call.body, self.cipher)
        )

    async def fail(self, call: Call[bodies.FailBody, None]) -> TaskView:
        task_id = call.params["id"]
        [redact] = await self._redactors(call, [task_id])
        return await self._submit_and_view(call, request_commands.fail_command(call, task_id, call.body, redact))

    async def progress_many(self, call: Call[bodies.ProgressManyBody, None]) -> TaskItems:
        return await self._submit_many(
            [
                (item.id, partial(request_commands.progress_command, call, item.id, item, self.cipher))
                for item in call.body.items
            ]
        )

    async def complete_many(self, call: Call[bodies.CompleteManyBody, None]) -> TaskItems:
        return await self._submit_many(
            [
                (item.id, partial(request_commands.complete_command, call, item.id, item, self.cipher))
                for item in call.body.items
            ]
        )

    async def fail_many(self, call: Call[bodies.FailManyBody, None]) -> TaskItems:
        body = call.body
        redactors = await self._redactors(call, [item.id for item in body.items])
        return await self._submit_many(
            [
                (item.id, partial(request_commands.fail_command, call, item.id, item, redact))
                for item, redact in zip(body.items, redactors, strict=True)
            ]
        )

    async def release_many(self, call: Call[bodies.ReleaseManyBody, None]) -> TaskItems:
        return await self._submit_many(
            [(item.id, partial(request_commands.release_command, call, item.id, item)) for item in call.body.items]
        )

    # -- shared --------------------------------------------------------------------------------------------------

    async def _submit_and_view(self, call: AnyCall, command: TaskUpdate) -> TaskView:
        await self.submit(command)
        return await self.get(call)

    async def _submit_many(self, requests: Sequence[tuple[str, Callable[[], TaskUpdate]]]) -> TaskItems:
        """Submit one command per (task id, command builder). Each item has its own outcome."""
        commands = [bulk_responses.try_build(build) for _, build in requests]
        submitted = [self.submit(command) for command in commands if not isinstance(command, Problem)]
        results = iter(await asyncio.gather(*submitted, return_exceptions=True))
        outcomes = [command if isinstance(command, Problem) else next(results) for command in commands]
        if problem := bulk_responses.problem_for_all(outcomes):
            raise problem
        return TaskItems(
            [
                _to_item(task_id, outcome, f"$.items[{index}]")
                for index, ((task_id, _), outcome) in enumerate(zip(requests, outcomes, strict=True))
            ]
        )

    async def _redactors(self, call: AnyCall, task_ids: Sequence[str]) -> list[Redactor]:
        lookups = [TaskLookup(call.zone_id, task_id, call.caller, dependency_limit=0) for task_id in task_ids]
        return await load_redactors(self.read_task, self.cipher, lookups)

    def _mask(self, field: str, stored: str) -> str:
        return self.cipher.mask(stored)

    def _decrypt(self, claimed: ClaimedTask, field: str, stored: str) -> str:
        return self.cipher.decrypt(stored, (claimed.task.zone_id, TABLE, claimed.task.id, field))


def _log_release_failure(done: asyncio.Future[Task]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, NotFound | Conflict):
        # The attempt stays open until its agent becomes stale. It is then aborted, and counts as an attempt.
        log.warning("could not release a claim whose response was not delivered: %r", error)


def _to_item(task_id: str, outcome: Task | BaseException, path: str) -> TaskItem:
    if isinstance(outcome, Problem):
        return TaskItem(task_id, error=bulk_responses.problem_document(outcome, path))
    if isinstance(outcome, BaseException):
        raise outcome
    return TaskItem(task_id, outcome.status)


def routes(handlers: TaskHandlers) -> list[Route]:
    return [
        *_create_and_read_routes(handlers),
        *_change_routes(handlers),
        *_work_routes(handlers),
        *_bulk_routes(handlers),
    ]


TASKS_PATH = "/api/v1/agent-tasks"
TASK_PATH = TASKS_PATH + "/{id}"
TAGS = ("tasks",)
NOT_FOUND = ("task_not_found",)
REPORT_ERRORS = (*NOT_FOUND, "stale_attempt", "attempt_token_required")


def _create_and_read_routes(handlers: TaskHandlers) -> list[Route]:
    return [
        Route(
            "POST", TASKS_PATH, handlers.create, "Create one task or several", LIFECYCLE, status=201, tags=TAGS,
            permission="tasks.create",
            errors=("unknown_dependency", "dependency_cycle", "task_exists", "idempotency_key_conflict", "zone_ended",
                    "field_too_large", "answer_too_large"), body_bytes_max=BULK_BYTES_MAX,
            description="Returns 201, or 200 with the existing task if the Idempotency-Key was used before. With "
            "`tasks`, each task has its own outcome, in request order.",
        ),
        Route(
            "GET", TASKS_PATH, handlers.list_tasks, "List tasks, newest first", LIFECYCLE, errors=("invalid_cursor",),
            tags=TAGS, permission="tasks.read",
        ),
        Route(
            "GET", TASK_PATH, handlers.get, "Get a task", LIFECYCLE, errors=NOT_FOUND, tags=TAGS,
            permission="tasks.read",
        ),
        Route(
            "GET", "/api/v1/agents/{id}/tasks", handlers.list_agent_tasks, "List an agent's tasks", LIFECYCLE,
            errors=("invalid_cursor", "agent_not_found"), tags=TAGS, permission="tasks.read",
        ),
    ]  # fmt: skip


def _change_routes(handlers: TaskHandlers) -> list[Route]:
    conflicts = (*NOT_FOUND, "task_state_conflict")
    return [
        Route(
            "PATCH", TASK_PATH, handlers.patch, "Change, pause or resume a task", LIFECYCLE, tags=TAGS,
            permission="tasks.change",
            errors=(*conflicts, "unknown_dependency", "dependency_cycle", "dependency_failed"),
        ),
        Route(
            "POST", TASK_PATH + "/cancel", handlers.cancel, "Cancel a task", LIFECYCLE, errors=conflicts, tags=TAGS,
            permission="tasks.change",
        ),
        Route(
            "POST", TASK_PATH + "/retry", handlers.retry, "Retry a failed or canceled task", LIFECYCLE,
            errors=conflicts, tags=TAGS, permission="tasks.change",
        ),
        Route(
            "POST", TASK_PATH + "/archive", handlers.archive, "Archive an ended task", LIFECYCLE, errors=conflicts,
            tags=TAGS, permission="tasks.change",
        ),
    ]  # fmt: skip


def _work_routes(handlers: TaskHandlers) -> list[Route]:
    return [
        Route(
            "POST", "/api/v1/agents/{id}/claim", handlers.claim, "Claim tasks", LIFECYCLE, is_long_poll=True, tags=TAGS,
            permission="tasks.work", errors=("agent_not_found", "agent_terminated", "agent_draining", "agent_required"),
            description="Returns up to `max` tasks for the agent; waits up to `waitMs` if none is ready. The same "
            "`claimId` returns the same tasks.",
        ),
        Route(
            "POST", TASK_PATH + "/start", handlers.start, "Start an assigned task", LIFECYCLE, errors=REPORT_ERRORS,
            tags=TAGS, permission="tasks.work",
        ),
        Route(
            "PATCH", TASK_PATH + "/progress", handlers.progress, "Report progress and save a checkpoint", LIFECYCLE,
            tags=TAGS, permission="tasks.work", errors=(*REPORT_ERRORS, "idempotency_key_conflict"),
            body_bytes_max=SINGLE_BYTES_MAX,
            description="With an Idempotency-Key or a `progressId`, costs are charged once: a repeated report changes "
            "nothing.",
        ),
        Route(
            "POST", TASK_PATH + "/complete", handlers.complete, "Complete a task", LIFECYCLE, errors=REPORT_ERRORS,
            tags=TAGS, permission="tasks.work",
            description="A repeated report with the same token gets the same response. ADMIN and OWNER may complete a "
            "paused task without a token.", body_bytes_max=SINGLE_BYTES_MAX,
        ),
        Route(
            "POST", TASK_PATH + "/fail", handlers.fail, "Report a failed attempt", LIFECYCLE, errors=REPORT_ERRORS,
            tags=TAGS, permission="tasks.work",
            description="The task is retried after a backoff, unless `retryable` is false or no retry is left.",
            body_bytes_max=SINGLE_BYTES_MAX,
        ),
        Route(
            "POST", TASK_PATH + "/release", handlers.release, "Release a task", LIFECYCLE, errors=REPORT_ERRORS,
            tags=TAGS, permission="tasks.work", description="Gives the attempt back. It does not count.",
        ),
    ]  # fmt: skip


def _bulk_routes(handlers: TaskHandlers) -> list[Route]:
    per_item = "Each item has its own outcome."
    return [
        Route(
            "POST", TASKS_PATH + "/complete", handlers.complete_many, "Complete several tasks", LIFECYCLE, tags=TAGS,
            description=per_item, permission="tasks.work", body_bytes_max=BULK_BYTES_MAX,
        ),
        Route(
            "POST", TASKS_PATH + "/progress", handlers.progress_many, "Report progress on several tasks", LIFECYCLE,
            tags=TAGS, permission="tasks.work",
            description=f"{per_item} With a `progressId`, the costs of an item are charged once.",
            body_bytes_max=BULK_BYTES_MAX,
        ),
        Route(
            "POST", TASKS_PATH + "/fail", handlers.fail_many, "Report several failed attempts", LIFECYCLE, tags=TAGS,
            description=per_item, permission="tasks.work", body_bytes_max=BULK_BYTES_MAX,
        ),
        Route(
            "POST", TASKS_PATH + "/release", handlers.release_many, "Release several tasks", LIFECYCLE, tags=TAGS,
            description=per_item, permission="tasks.work",
        ),
    ]  # fmt: skip
