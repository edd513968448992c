"""What a request says, as the commands of the lane: bounded, with its secrets sealed and its chance drawn."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypedDict

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid, TooLarge
from quarterdeck.core.ids import new_id
from quarterdeck.core.wire import Call, Caller
from quarterdeck.domain.tasks.model.bodies import (
    Capabilities,
    ClaimBody,
    CompleteBody,
    CostItem,
    CreateBody,
    CreateItem,
    FailBody,
    PatchBody,
    ProgressBody,
)
from quarterdeck.domain.tasks.model.commands import Claim, Complete, Cost, Create, Fail, Patch, Progress
from quarterdeck.domain.tasks.model.rows import Content
from quarterdeck.domain.tasks.rules.queues import class_of
from quarterdeck.engine.secrets import Safe

FIELD_MAX = 1 << 20
"""Bytes of one JSON field."""
TABLE = "agent_tasks"
MICROS = 1_000_000
EMPTY = "{}"


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
    return Progress(
        **asker(call),
        id=task_id,
        token=token(call, said.attempt_token),
        percent=said.progress_percent,
        step=said.current_step,
        checkpoint=sealed(safe, call.zone, task_id, "checkpoint_data", said.checkpoint_data),
        costs=costs(said.costs),
        resets=said.reset,
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
    return tuple(
        Cost(each.model, each.input_tokens, each.output_tokens, round(each.usd * MICROS)) for each in said
    )


# -- JSON --------------------------------------------------------------------------------------------------------


def sealed(safe: Safe, zone_id: str, task_id: str, field: str, value: object) -> str | None:
    return None if value is None else bounded(field, safe.seal(value, (zone_id, TABLE, task_id, field)))


def bounded(field: str, said: str) -> str:
    if len(said) * 4 > FIELD_MAX and len(said.encode()) > FIELD_MAX:
        raise TooLarge("field_too_large", f"`{field}` may be 1 MiB at most.")
    return said


def text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def millis(moment: datetime) -> Millis:
    return int(moment.timestamp() * 1_000)
