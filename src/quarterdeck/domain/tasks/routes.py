"""The route table of tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import UNSET

from quarterdeck.core import idempotency, paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Conflict, Invalid, NotFound, Problem
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.tasks import bulk_responses, request_commands
from quarterdeck.domain.tasks.error_redaction import Strike, strikes
from quarterdeck.domain.tasks.model import bodies
from quarterdeck.domain.tasks.model.commands import (
    Archive,
    Cancel,
    Claim,
    Command,
    Create,
    Outcome,
    Release,
    Retry,
    Start,
)
from quarterdeck.domain.tasks.model.rows import TABLE, Created, Leased, Leases, Task, TaskSettings, Whole
from quarterdeck.domain.tasks.model.views import CreatedItems, TaskItem, TaskItems, TaskLeases, TaskList, TaskView
from quarterdeck.domain.tasks.operations import dependency_reads, reads
from quarterdeck.domain.tasks.operations.batch import TaskWaiters
from quarterdeck.domain.tasks.operations.reads import TaskFilter, TaskRef
from quarterdeck.domain.tasks.request_commands import asker
from quarterdeck.domain.tasks.rules import errors
from quarterdeck.domain.tasks.rules.dependency_graph import arranged
from quarterdeck.domain.tasks.rules.views import lease_view, view
from quarterdeck.engine.long_poll import leases_of, wait_for_work
from quarterdeck.engine.secrets import Safe
from quarterdeck.engine.transaction import Engine, Tx

log = logging.getLogger("quarterdeck.tasks")
LISTING = "agent-tasks"
BULK_BYTES_MAX = 16 << 20
"""A body is decoded in one go: a larger one would hold up everybody else's for longer than they should notice."""
ONE_BYTES_MAX = 4 << 20
"""Some fields of one mebibyte each, and what stands around them."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaskDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit: Callable[[Command], asyncio.Future[Outcome]]
    submit_show: Callable[[TaskRef], Awaitable[Whole]]
    waiters: TaskWaiters
    safe: Safe
    settings: TaskSettings

    # -- making and looking --------------------------------------------------------------------------------------

    async def create(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, bodies.CreateBody)
        key = idempotency.one_key(call.idempotency_key, None)
        if body.tasks is not UNSET:
            request_commands.check_many(body, body.tasks)
            return Reply(await self._create_many(call, body.tasks, key), 201)
        item = request_commands.one(body)
        if item.id is not None and item.id in item.depends_on:
            raise errors.cycle([item.id, item.id])
        ask = request_commands.creation(call, item, key, self.safe)
        done = await self.submit(ask)
        return Reply(await self._made(call, ask, done), 201 if isinstance(done, Created) and done.made else 200)

    async def _create_many(self, call: Call, items: Sequence[bodies.CreateItem], key: str | None) -> CreatedItems:
        """Each its own outcome, in the order of the request; made so that each finds what it depends on."""
        asks = self._asked_for(call, items, key)
        named = {ask.id: ask for ask in asks if isinstance(ask, Create)}
        order, cycles = arranged({task_id: ask.depends_on for task_id, ask in named.items()})
        futures = {task_id: self.submit(named[task_id]) for task_id in order}
        answer = bulk_responses.Answer()
        try:
            for ask in asks:
                # In order, and each as soon as it is made: while it is spelt out the database makes the next.
                if isinstance(ask, Problem):
                    answer.refuse(ask)
                elif ask.id in cycles:
                    answer.refuse(errors.cycle(cycles[ask.id]))
                else:
                    await self._made_or_not(call, ask, futures[ask.id], answer)
        except Problem:
            # That is the answer to all of them: what the others raise, which is the same, is said to nobody else.
            await asyncio.gather(*futures.values(), return_exceptions=True)
            raise
        return CreatedItems(answer.outcomes)

    def _asked_for(self, call: Call, items: Sequence[bodies.CreateItem], key: str | None) -> list[Create | Problem]:
        asks: list[Create | Problem] = []
        named: set[str] = set()
        for place, item in enumerate(items):
            own_key = None if key is None else f"{key}#{place}"
            ask = bulk_responses.attempted(partial(request_commands.creation, call, item, own_key, self.safe))
            if isinstance(ask, Create):
                if ask.id in named:
                    ask = Invalid("invalid_body", "An earlier task of the request has the same id.", field="$.id")
                else:
                    named.add(ask.id)
            asks.append(ask)
        return asks

    async def _made_or_not(
        self, call: Call, ask: Create, making: asyncio.Future[Outcome], answer: bulk_responses.Answer
    ) -> None:
        try:
            answer.outcomes.append(await self._made(call, ask, await making, answer))
        except Problem as problem:
            if bulk_responses.is_for_all(problem):
                raise
            answer.refuse(problem)

    async def _made(
        self, call: Call, ask: Create, done: Outcome, answer: bulk_responses.Answer | None = None
    ) -> TaskView:
        """`answer` is the one in which it is one of many."""
        assert isinstance(done, Created)
        if not done.made:
            most = dependency_reads.SHOWN_MAX if answer is None else dependency_reads.LISTED_MAX
            known = await self.submit_show(TaskRef(call.zone, done.task.id, call.caller, most))
            if answer is not None and not answer.has_room(known.content.size):
                raise errors.too_much_to_show(known.task.id)
            return view(known, self._masked)
        whole = Whole(done.task, done.content or ask.content, ask.depends_on)
        return view(whole, self._masked)

    async def show(self, call: Call) -> TaskView:
        return await self._shown(call, call.params["id"])

    async def _shown(self, call: Call, task_id: str) -> TaskView:
        return view(await self.submit_show(TaskRef(call.zone, task_id, call.caller)), self._masked)

    async def list_all(self, call: Call) -> Reply:
        return await self._list(call, None)

    async def list_of_agent(self, call: Call) -> Reply:
        return await self._list(call, call.params["id"])

    async def _list(self, call: Call, agent_id: str | None) -> Reply:
        query = call.query
        assert isinstance(query, bodies.ListQuery)
        low = query.min_priority if query.priority is None else query.priority
        wanted = TaskFilter(
            zone_id=call.zone,
            caller=call.caller,
            limit=query.limit,
            before=paging.decode(LISTING, query.cursor) if query.cursor else None,
            status=query.status,
            priority=low,
            priority_max=query.priority,
            task_type=query.task_type,
            agent_id=agent_id or query.agent_id,
            names_agent=agent_id is not None,
            created_after=None if query.created_after is None else request_commands.millis(query.created_after),
            tags=tuple(tag for tag in (query.tags or "").split(",") if tag),
        )
        page = await self._read(call, lambda tx: reads.page(tx, wanted))
        following = paging.encode(LISTING, page.following) if page.following else None
        body = TaskList([view(whole, self._masked) for whole in page.items], following)
        return Reply(body, 200, call.link_to_next(following))

    # -- by hand -------------------------------------------------------------------------------------------------

    async def patch(self, call: Call) -> TaskView:
        body = call.body
        assert isinstance(body, bodies.PatchBody)
        return await self._moved(call, request_commands.patch(call, body))

    async def cancel(self, call: Call) -> TaskView:
        body = call.body
        assert isinstance(body, bodies.CancelBody)
        return await self._moved(call, Cancel(**asker(call), id=call.params["id"], reason=body.reason))

    async def retry(self, call: Call) -> TaskView:
        return await self._moved(call, Retry(**asker(call), id=call.params["id"]))

    async def archive(self, call: Call) -> TaskView:
        return await self._moved(call, Archive(**asker(call), id=call.params["id"]))

    # -- working -------------------------------------------------------------------------------------------------

    async def claim(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, bodies.ClaimBody)
        ask = request_commands.claim(call, body)
        wait_ms = min(body.wait_ms, self.settings.task_claim_wait_max_ms)
        if wait_ms:
            given = await wait_for_work(ask, call.zone, self._claim, self.waiters, wait_ms / 1000)
        else:
            given = await self._claim(ask)
        shown = TaskLeases([lease_view(leased, partial(self._opened, leased)) for leased in given])
        return Reply(shown, unsent=lambda: self.waiters.unwanted(given))

    async def _claim(self, ask: Claim) -> tuple[Leased, ...]:
        return await leases_of(self.submit(ask), _items, self.waiters)

    def release(self, given: Sequence[Leased]) -> None:
        """Leases that reached nobody are as if they had never been given."""
        for leased in given:
            row = leased.task
            ask = Release(zone_id=row.zone_id, id=row.id, token=row.attempt_token or "")
            self.submit(ask).add_done_callback(_released)

    async def start(self, call: Call) -> TaskView:
        body = call.body
        assert isinstance(body, bodies.StartBody)
        ask = Start(**asker(call), id=call.params["id"], token=request_commands.token(call, body.attempt_token))
        return await self._moved(call, ask)

    async def release_one(self, call: Call) -> TaskView:
        body = call.body
        assert isinstance(body, bodies.StartBody)
        return await self._moved(call, request_commands.release(call, call.params["id"], body))

    async def progress(self, call: Call) -> TaskView:
        body = call.body
        assert isinstance(body, bodies.ProgressBody)
        body = msgspec.structs.replace(body, progress_id=idempotency.one_key(call.idempotency_key, body.progress_id))
        return await self._moved(call, request_commands.progress(call, call.params["id"], body, self.safe))

    async def complete(self, call: Call) -> TaskView:
        body = call.body
        assert isinstance(body, bodies.CompleteBody)
        return await self._moved(call, request_commands.completion(call, call.params["id"], body, self.safe))

    async def fail(self, call: Call) -> TaskView:
        body = call.body
        assert isinstance(body, bodies.FailBody)
        task_id = call.params["id"]
        [strike] = await self._strikes(call, [task_id])
        return await self._moved(call, request_commands.failure(call, task_id, body, strike))

    async def progress_many(self, call: Call) -> TaskItems:
        body = call.body
        assert isinstance(body, bodies.ProgressManyBody)
        return await self._many(
            [(item.id, partial(request_commands.progress, call, item.id, item, self.safe)) for item in body.items]
        )

    async def complete_many(self, call: Call) -> TaskItems:
        body = call.body
        assert isinstance(body, bodies.CompleteManyBody)
        return await self._many(
            [(item.id, partial(request_commands.completion, call, item.id, item, self.safe)) for item in body.items]
        )

    async def fail_many(self, call: Call) -> TaskItems:
        body = call.body
        assert isinstance(body, bodies.FailManyBody)
        strikes = await self._strikes(call, [item.id for item in body.items])
        return await self._many(
            [
                (item.id, partial(request_commands.failure, call, item.id, item, strike))
                for item, strike in zip(body.items, strikes, strict=True)
            ]
        )

    async def release_many(self, call: Call) -> TaskItems:
        body = call.body
        assert isinstance(body, bodies.ReleaseManyBody)
        return await self._many(
            [(item.id, partial(request_commands.release, call, item.id, item)) for item in body.items]
        )

    # -- shared --------------------------------------------------------------------------------------------------

    async def _moved(self, call: Call, ask: Command) -> TaskView:
        await self.submit(ask)
        return await self.show(call)

    async def _many(self, words: Sequence[tuple[str, Callable[[], Command]]]) -> TaskItems:
        """Each its own outcome: one that is refused costs the others nothing. `words` are about these tasks, each yet
        to be made a command of."""
        asks = [bulk_responses.attempted(make) for _, make in words]
        submitted = [self.submit(ask) for ask in asks if not isinstance(ask, Problem)]
        done = iter(await asyncio.gather(*submitted, return_exceptions=True))
        outcomes = [ask if isinstance(ask, Problem) else next(done) for ask in asks]
        if answer := bulk_responses.answer_to_all(outcomes):
            raise answer
        return TaskItems(
            [
                _item(task_id, outcome, f"$.items[{place}]")
                for place, ((task_id, _), outcome) in enumerate(zip(words, outcomes, strict=True))
            ]
        )

    async def _read(self, call: Call, operation: Callable[[Tx], Awaitable[T]]) -> T:
        """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
        return await self.engine.read(operation, zones={call.zone, call.caller.zone_id})

    async def _strikes(self, call: Call, task_ids: Sequence[str]) -> list[Strike]:
        refs = [TaskRef(call.zone, task_id, call.caller, most=0) for task_id in task_ids]
        return await strikes(self.submit_show, self.safe, refs)

    def _masked(self, field: str, stored: str) -> str:
        return self.safe.masked(stored)

    def _opened(self, leased: Leased, field: str, stored: str) -> str:
        return self.safe.open(stored, (leased.task.zone_id, TABLE, leased.task.id, field))


def _items(claimed: Outcome) -> tuple[Leased, ...]:
    assert isinstance(claimed, Leases)
    return claimed.items


def _released(done: asyncio.Future[Outcome]) -> None:
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, NotFound | Conflict):
        # It is aborted when its agent is stale then; the attempt counts, and whoever reads this knows why.
        log.warning("a lease that reached nobody could not be given back: %r", error)


def _item(task_id: str, outcome: Outcome | BaseException, where: str) -> TaskItem:
    if isinstance(outcome, Problem):
        return TaskItem(task_id, error=bulk_responses.document(outcome, where))
    if isinstance(outcome, BaseException):
        raise outcome
    assert isinstance(outcome, Task)
    return TaskItem(task_id, outcome.status)


def routes(desk: TaskDesk) -> list[Route]:
    return [*_made_and_seen(desk), *_moved_by_hand(desk), *_worked_on(desk), *_in_bulk(desk)]


BASE = "/api/v1/agent-tasks"
ONE = BASE + "/{id}"
TAGS = ("tasks",)
MISSING = ("task_not_found",)
SPOKEN = (*MISSING, "stale_attempt", "attempt_token_required")


def _made_and_seen(desk: TaskDesk) -> list[Route]:
    return [
        Route(
            "POST", BASE, desk.create, "Make a task, or many", LIFECYCLE, body=bodies.CreateBody,
            answer=TaskView | CreatedItems, status=201, tags=TAGS, power="tasks.create", body_max=BULK_BYTES_MAX,
            refusals=("unknown_dependency", "dependency_cycle", "task_exists", "idempotency_key_conflict",
                      "zone_ended", "field_too_large", "answer_too_large"),
            description="201, or 200 with what the same Idempotency-Key stands for already. With `tasks`, one outcome "
            "for each, in order.",
        ),
        Route(
            "GET", BASE, desk.list_all, "List tasks, newest first", LIFECYCLE, query=bodies.ListQuery, answer=TaskList,
            refusals=("invalid_cursor",), tags=TAGS, power="tasks.read",
        ),
        Route(
            "GET", ONE, desk.show, "Show a task", LIFECYCLE, answer=TaskView, refusals=MISSING, tags=TAGS,
            power="tasks.read",
        ),
        Route(
            "GET", "/api/v1/agents/{id}/tasks", desk.list_of_agent, "List an agent's tasks", LIFECYCLE,
            query=bodies.ListQuery, answer=TaskList, refusals=("invalid_cursor", "agent_not_found"), tags=TAGS,
            power="tasks.read",
        ),
    ]  # fmt: skip


def _moved_by_hand(desk: TaskDesk) -> list[Route]:
    conflicts = (*MISSING, "task_state_conflict")
    return [
        Route(
            "PATCH", ONE, desk.patch, "Change a task, pause or resume it", LIFECYCLE, body=bodies.PatchBody,
            answer=TaskView, tags=TAGS, power="tasks.change",
            refusals=(*conflicts, "unknown_dependency", "dependency_cycle", "dependency_failed"),
        ),
        Route(
            "POST", ONE + "/cancel", desk.cancel, "Cancel a task for good", LIFECYCLE, body=bodies.CancelBody,
            answer=TaskView, refusals=conflicts, tags=TAGS, power="tasks.change",
        ),
        Route(
            "POST", ONE + "/retry", desk.retry, "Begin a failed or canceled task anew", LIFECYCLE,
            answer=TaskView, refusals=conflicts, tags=TAGS, power="tasks.change",
        ),
        Route(
            "POST", ONE + "/archive", desk.archive, "Put a task away that is over", LIFECYCLE,
            answer=TaskView, refusals=conflicts, tags=TAGS, power="tasks.change",
        ),
    ]  # fmt: skip


def _worked_on(desk: TaskDesk) -> list[Route]:
    return [
        Route(
            "POST", "/api/v1/agents/{id}/claim", desk.claim, "Take work", LIFECYCLE, body=bodies.ClaimBody,
            answer=TaskLeases, waits=True, tags=TAGS, power="tasks.work",
            refusals=("agent_not_found", "agent_terminated", "agent_draining", "agent_required"),
            description="Gives up to `max` tasks to the agent; waits up to `waitMs` if there are none. The same "
            "`claimId` gives the same tasks again.",
        ),
        Route(
            "POST", ONE + "/start", desk.start, "Begin an assigned task", LIFECYCLE, body=bodies.StartBody,
            answer=TaskView, refusals=SPOKEN, tags=TAGS, power="tasks.work",
        ),
        Route(
            "PATCH", ONE + "/progress", desk.progress, "Report progress, save a checkpoint", LIFECYCLE,
            body=bodies.ProgressBody, answer=TaskView, tags=TAGS, power="tasks.work", body_max=ONE_BYTES_MAX,
            refusals=(*SPOKEN, "idempotency_key_conflict"),
            description="With an Idempotency-Key, or a `progressId`, costs are charged once: repeated, it changes "
            "nothing.",
        ),
        Route(
            "POST", ONE + "/complete", desk.complete, "Report a task done", LIFECYCLE, body=bodies.CompleteBody,
            answer=TaskView, refusals=SPOKEN, tags=TAGS, power="tasks.work", body_max=ONE_BYTES_MAX,
            description="Said twice with the same token, it is answered twice. A paused task is completed by hand, "
            "without a token, by ADMIN or OWNER.",
        ),
        Route(
            "POST", ONE + "/fail", desk.fail, "Report that an attempt has failed", LIFECYCLE, body=bodies.FailBody,
            answer=TaskView, refusals=SPOKEN, tags=TAGS, power="tasks.work", body_max=ONE_BYTES_MAX,
            description="Another attempt follows after the backoff, unless `retryable` is false or it was the last.",
        ),
        Route(
            "POST", ONE + "/release", desk.release_one, "Give a task back", LIFECYCLE, body=bodies.StartBody,
            answer=TaskView, refusals=SPOKEN, tags=TAGS, power="tasks.work",
            description="As if the attempt had never begun: it does not count.",
        ),
    ]  # fmt: skip


def _in_bulk(desk: TaskDesk) -> list[Route]:
    each = "Each item has its own outcome."
    return [
        Route(
            "POST", BASE + "/complete", desk.complete_many, "Report many tasks done", LIFECYCLE,
            body=bodies.CompleteManyBody, answer=TaskItems, tags=TAGS, description=each, power="tasks.work",
            body_max=BULK_BYTES_MAX,
        ),
        Route(
            "POST", BASE + "/progress", desk.progress_many, "Report the progress of many tasks", LIFECYCLE,
            body=bodies.ProgressManyBody, answer=TaskItems, tags=TAGS, power="tasks.work",
            description=f"{each} Of one with a `progressId` the costs are charged once, however often it is sent.",
            body_max=BULK_BYTES_MAX,
        ),
        Route(
            "POST", BASE + "/fail", desk.fail_many, "Report that many attempts have failed", LIFECYCLE,
            body=bodies.FailManyBody, answer=TaskItems, tags=TAGS, description=each, power="tasks.work",
            body_max=BULK_BYTES_MAX,
        ),
        Route(
            "POST", BASE + "/release", desk.release_many, "Give many tasks back", LIFECYCLE,
            body=bodies.ReleaseManyBody, answer=TaskItems, tags=TAGS, description=each, power="tasks.work",
        ),
    ]  # fmt: skip
