"""What a request says, as the commands of the lane: bounded, with its secrets sealed and its chance drawn."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypedDict, TypeVar

import msgspec
from msgspec import UNSET

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid, Problem, TooLarge
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import Call
from quarterdeck.domain.tasks.model.bodies import (
    EDGES_MAX,
    Capabilities,
    ClaimBody,
    CompleteBody,
    CostItem,
    CreateBody,
    CreateItem,
    FailBody,
    PatchBody,
    ProgressBody,
    StartBody,
)
from quarterdeck.domain.tasks.model.commands import Claim, Complete, Cost, Create, Fail, Patch, Progress, Release
from quarterdeck.domain.tasks.model.cost_types import MICROS
from quarterdeck.domain.tasks.model.rows import TABLE, Content
from quarterdeck.domain.tasks.rules.ready_queues import class_of
from quarterdeck.engine.secrets import Safe

FIELD_MAX = 1 << 20
"""Bytes of one JSON field."""
EMPTY = "{}"
P = TypeVar("P", bound=Problem)
ALONE = CreateBody()
"""Nothing said of one task."""


class Asker(TypedDict):
    """What every command says of whoever asks."""

    zone_id: str
    caller: Caller
    trace: str | None


def asker(call: Call) -> Asker:
    return {"zone_id": call.zone, "caller": call.caller, "trace": call.trace}


# -- making ------------------------------------------------------------------------------------------------------


def one(body: CreateBody) -> CreateItem:
    """A request for one task, which looks like the items of a request for many."""
    for name, spelt in (("title", "title"), ("task_type", "taskType")):
        if getattr(body, name) is UNSET:
            raise Invalid("invalid_body", f"A task needs a `{spelt}`.", field=f"$.{spelt}")
    said = {name: getattr(body, name) for name in CreateItem.__struct_fields__}
    return CreateItem(**said)


def check_many(body: CreateBody, items: Sequence[CreateItem]) -> None:
    """What only the request as a whole can be wrong by."""
    if msgspec.structs.replace(body, tasks=UNSET) != ALONE:
        raise Invalid("invalid_body", "It is one task, or `tasks`, and not both.", field="$.tasks")
    if sum(len(item.depends_on) for item in items) > EDGES_MAX:
        raise Invalid(
            "invalid_body",
            f"The tasks of one request may depend on {EDGES_MAX:,} tasks in all, counted for each.",
            field="$.tasks",
        )


def creation(call: Call, item: CreateItem, key: str | None, safe: Safe) -> Create:
    task_id = item.id or new_id()
    required = tuple(sorted({*item.required_capabilities, *_also_required(item.metadata)}))
    tags = tuple(dict.fromkeys(item.tags))
    content = Content(
        title=item.title,
        description=item.description,
        last_error=None,
        input_context=sealed(safe, call.zone, task_id, "input_context", item.input_context) or EMPTY,
        output_result=None,
        summary=None,
        checkpoint_data=EMPTY,
        metadata_json=bounded("metadata", text(item.metadata)),
        tags=text(tags),
        required_capabilities=text(required),
    )
    return Create(
        **asker(call),
        id=task_id,
        names_itself=item.id is not None,
        key=key,
        digest=safe.digest(item) if key is not None else "",
        content=content,
        task_type=item.task_type,
        priority=item.priority,
        depends_on=tuple(dict.fromkeys(item.depends_on)),
        on_dependency_failure=item.on_dependency_failure,
        max_retries=item.max_retries,
        retry_backoff_seconds=item.retry_backoff_seconds,
        estimated_duration_minutes=item.estimated_duration_minutes,
        run_at=None if item.run_at is None else millis(item.run_at),
        timeout_seconds=item.timeout_seconds,
        required_capabilities=required,
        class_id=class_of(item.task_type, required),
        tags=tags,
    )


def _also_required(metadata: dict[str, object]) -> list[str]:
    """The seed reads them from here."""
    if "requiredCapabilities" not in metadata:
        return []
    try:
        return msgspec.convert(metadata["requiredCapabilities"], Capabilities)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_body", f"{error}.", field="$.metadata.requiredCapabilities") from None


# -- working -----------------------------------------------------------------------------------------------------


def claim(call: Call, body: ClaimBody) -> Claim:
    return Claim(
        **asker(call),
        agent_id=call.params["id"],
        max=body.max,
        tokens=tuple(secrets.token_urlsafe(16) for _ in range(body.max)),
        task_types=None if body.task_types is None else frozenset(body.task_types),
        capabilities=None if body.capabilities is None else frozenset(body.capabilities),
        claim_id=body.claim_id,
    )


def progress(call: Call, task_id: str, said: ProgressBody, safe: Safe) -> Progress:
    # Without costs it says the same however often it is said: there is nothing to keep a key for.
    key = said.progress_id if said.costs else None
    return Progress(
        **asker(call),
        id=task_id,
        token=token(call, said.attempt_token),
        percent=said.progress_percent,
        step=said.current_step,
        checkpoint=sealed(safe, call.zone, task_id, "checkpoint_data", said.checkpoint_data),
        costs=costs(said.costs),
        resets=said.reset,
        key=key,
        digest="" if key is None else safe.digest(said),
    )


def completion(call: Call, task_id: str, said: CompleteBody, safe: Safe) -> Complete:
    return Complete(
        **asker(call),
        id=task_id,
        token=token(call, said.attempt_token),
        output=sealed(safe, call.zone, task_id, "output_result", said.output_result) or "null",
        summary=said.summary,
        costs=costs(said.costs),
    )


def failure(call: Call, task_id: str, said: FailBody, strike: Callable[[str], str]) -> Fail:
    """`strike` strikes the secrets of the task out of what is said of its failure."""
    return Fail(
        **asker(call),
        id=task_id,
        token=token(call, said.attempt_token),
        error=strike(said.error),
        stack_trace=None if said.stack_trace is None else strike(said.stack_trace),
        retryable=said.retryable,
        chance=random.random(),
        costs=costs(said.costs),
    )


def release(call: Call, task_id: str, said: StartBody) -> Release:
    return Release(**asker(call), id=task_id, token=token(call, said.attempt_token))


def patch(call: Call, body: PatchBody) -> Patch:
    expected = body.estimated_completion_at
    tags = None if body.tags is UNSET else tuple(dict.fromkeys(body.tags))
    return Patch(
        **asker(call),
        id=call.params["id"],
        holds=None if body.status is UNSET else "pause" if body.status == "PAUSED" else "resume",
        priority=None if body.priority is UNSET else body.priority,
        tags=tags,
        tags_json=None if tags is None else text(tags),
        metadata=None if body.metadata is UNSET else bounded("metadata", text(body.metadata)),
        estimated_completion_at=millis(expected) if isinstance(expected, datetime) else expected,
        depends_on=None if body.depends_on is UNSET else tuple(dict.fromkeys(body.depends_on)),
    )


def token(call: Call, said: str | None) -> str | None:
    """The attempt's; an agent token that was minted for the attempt stands in for it."""
    return said if said is not None else call.caller.attempt


def costs(said: Sequence[CostItem]) -> tuple[Cost, ...]:
    return tuple(Cost(each.model, each.input_tokens, each.output_tokens, round(each.usd * MICROS)) for each in said)


# -- JSON --------------------------------------------------------------------------------------------------------


def sealed(safe: Safe, zone_id: str, task_id: str, field: str, value: object) -> str | None:
    if value is None:
        return None
    try:
        said = safe.seal(value, (zone_id, TABLE, task_id, field))
    except Invalid as problem:
        # It knows the place within the value; which value that is, only we know.
        raise placed(problem, f"$.{_wire(field)}") from None
    return bounded(field, said)


def bounded(field: str, said: str) -> str:
    if len(said) * 4 > FIELD_MAX and len(said.encode()) > FIELD_MAX:
        name = _wire(field)
        raise TooLarge("field_too_large", f"`{name}` may be 1 MiB at most.", field=f"$.{name}")
    return said


def placed(problem: P, where: str) -> P:
    """The same problem, of what stands at this place of the request. What is wrong with the request itself always names
    a field; what is wrong with the task it names need not."""
    field = problem.members.get("field")
    if field is None and not isinstance(problem, Invalid | TooLarge):
        return problem
    rest = "" if field is None else str(field).removeprefix("$").removeprefix(".")
    own = type(problem)(problem.code, problem.detail)
    own.members.update(problem.members)
    own.members["field"] = f"{where}{'.' if rest and not rest.startswith('[') else ''}{rest}"
    return own


def _wire(field: str) -> str:
    """A column by the name that it was sent under."""
    first, *others = field.split("_")
    return first + "".join(word.title() for word in others)


def text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def millis(moment: datetime) -> Millis:
    return int(moment.timestamp() * 1_000)
