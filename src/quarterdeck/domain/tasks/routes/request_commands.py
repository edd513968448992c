"""Builds the commands of the task lane from requests: checks sizes, encrypts secrets, generates tokens and jitter."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid, Problem, TooLarge
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import AnyCall
from quarterdeck.domain.costs.model import MICROS_PER_USD, Cost
from quarterdeck.domain.tasks.model.bodies import (
    REQUEST_DEPENDENCIES_MAX,
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
from quarterdeck.domain.tasks.model.commands import Claim, Complete, Create, Fail, Patch, Progress, Release
from quarterdeck.domain.tasks.model.rows import TABLE, Content
from quarterdeck.domain.tasks.rules.ready_queues import class_id_of
from quarterdeck.engine.secrets import FieldCipher

FIELD_BYTES_MAX = 1 << 20
"""Maximum size of one JSON field."""
EMPTY_OBJECT = "{}"
P = TypeVar("P", bound=Problem)
EMPTY_BODY = CreateBody()
"""A bulk request must equal this when its `tasks` are left out."""


# -- create ------------------------------------------------------------------------------------------------------


def single_item(body: CreateBody) -> CreateItem:
    """Convert the body of a request for one task to an item of a bulk request."""
    for name, wire_name in (("title", "title"), ("task_type", "taskType")):
        if getattr(body, name) is UNSET:
            raise Invalid("invalid_body", f"`{wire_name}` is required.", field=f"$.{wire_name}")
    fields = {name: getattr(body, name) for name in CreateItem.__struct_fields__}
    return CreateItem(**fields)


def check_bulk(body: CreateBody, items: Sequence[CreateItem]) -> None:
    """Check the request as a whole. Each item is checked separately."""
    if msgspec.structs.replace(body, tasks=UNSET) != EMPTY_BODY:
        raise Invalid("invalid_body", "Send the fields of one task, or `tasks`, but not both.", field="$.tasks")
    if sum(len(item.depends_on) for item in items) > REQUEST_DEPENDENCIES_MAX:
        raise Invalid(
            "invalid_body",
            f"The tasks of one request may have at most {REQUEST_DEPENDENCIES_MAX:,} dependencies in total.",
            field="$.tasks",
        )


def create_command(call: AnyCall, item: CreateItem, key: str | None, cipher: FieldCipher) -> Create:
    task_id = item.id or new_id()
    required_capabilities = tuple(sorted({*item.required_capabilities, *_metadata_capabilities(item.metadata)}))
    tags = tuple(dict.fromkeys(item.tags))
    content = Content(
        title=item.title,
        description=item.description,
        last_error=None,
        input_context=encrypt_field(cipher, call.zone_id, task_id, "input_context", item.input_context) or EMPTY_OBJECT,
        output_result=None,
        summary=None,
        checkpoint_data=EMPTY_OBJECT,
        metadata_json=check_field_size("metadata", to_json(item.metadata)),
        tags=to_json(tags),
        required_capabilities=to_json(required_capabilities),
    )
    return Create(
        **call.caller_fields,
        id=task_id,
        has_requested_id=item.id is not None,
        idempotency_key=key,
        request_digest=cipher.digest(item) if key is not None else "",
        content=content,
        task_type=item.task_type,
        priority=item.priority,
        depends_on=tuple(dict.fromkeys(item.depends_on)),
        on_dependency_failure=item.on_dependency_failure,
        max_retries=item.max_retries,
        retry_backoff_seconds=item.retry_backoff_seconds,
        estimated_duration_minutes=item.estimated_duration_minutes,
        run_at=None if item.run_at is None else to_millis(item.run_at),
        timeout_seconds=item.timeout_seconds,
        required_capabilities=required_capabilities,
        class_id=class_id_of(item.task_type, required_capabilities),
        tags=tags,
    )


def _metadata_capabilities(metadata: dict[str, object]) -> list[str]:
    """The `requiredCapabilities` in the metadata. Clients may set them there in addition to the field of that name."""
    if "requiredCapabilities" not in metadata:
        return []
    try:
        return msgspec.convert(metadata["requiredCapabilities"], Capabilities)
    except msgspec.ValidationError as error:
        raise Invalid("invalid_body", f"{error}.", field="$.metadata.requiredCapabilities") from None


# -- claim, report and change ------------------------------------------------------------------------------------


def claim_command(call: AnyCall, body: ClaimBody) -> Claim:
    return Claim(
        **call.caller_fields,
        agent_id=call.params["id"],
        limit=body.max,
        attempt_tokens=tuple(secrets.token_urlsafe(16) for _ in range(body.max)),
        task_types=None if body.task_types is None else frozenset(body.task_types),
        capabilities=None if body.capabilities is None else frozenset(body.capabilities),
        claim_id=body.claim_id,
    )


def progress_command(call: AnyCall, task_id: str, body: ProgressBody, cipher: FieldCipher) -> Progress:
    # Without costs, repeating a report has no further effect, so no key needs to be stored.
    key = body.progress_id if body.costs else None
    return Progress(
        **call.caller_fields,
        id=task_id,
        attempt_token=resolve_token(call, body.attempt_token),
        percent=body.progress_percent,
        step=body.current_step,
        checkpoint=encrypt_field(cipher, call.zone_id, task_id, "checkpoint_data", body.checkpoint_data),
        costs=to_costs(body.costs),
        is_reset=body.reset,
        idempotency_key=key,
        request_digest="" if key is None else cipher.digest(body),
    )


def complete_command(call: AnyCall, task_id: str, body: CompleteBody, cipher: FieldCipher) -> Complete:
    return Complete(
        **call.caller_fields,
        id=task_id,
        attempt_token=resolve_token(call, body.attempt_token),
        output=encrypt_field(cipher, call.zone_id, task_id, "output_result", body.output_result) or "null",
        summary=body.summary,
        costs=to_costs(body.costs),
    )


def fail_command(call: AnyCall, task_id: str, body: FailBody, redact: Callable[[str], str]) -> Fail:
    """`redact` removes the task's secrets from the error and the stack trace."""
    return Fail(
        **call.caller_fields,
        id=task_id,
        attempt_token=resolve_token(call, body.attempt_token),
        error=redact(body.error),
        stack_trace=None if body.stack_trace is None else redact(body.stack_trace),
        retryable=body.retryable,
        jitter=random.random(),
        costs=to_costs(body.costs),
    )


def release_command(call: AnyCall, task_id: str, body: StartBody) -> Release:
    return Release(**call.caller_fields, id=task_id, attempt_token=resolve_token(call, body.attempt_token))


def patch_command(call: AnyCall, body: PatchBody) -> Patch:
    estimated_end = body.estimated_completion_at
    tags = None if body.tags is UNSET else tuple(dict.fromkeys(body.tags))
    return Patch(
        **call.caller_fields,
        id=call.params["id"],
        status_change=None if body.status is UNSET else "pause" if body.status == "PAUSED" else "resume",
        priority=None if body.priority is UNSET else body.priority,
        tags=tags,
        tags_json=None if tags is None else to_json(tags),
        metadata=None if body.metadata is UNSET else check_field_size("metadata", to_json(body.metadata)),
        estimated_completion_at=to_millis(estimated_end) if isinstance(estimated_end, datetime) else estimated_end,
        depends_on=None if body.depends_on is UNSET else tuple(dict.fromkeys(body.depends_on)),
    )


def resolve_token(call: AnyCall, body_token: str | None) -> str | None:
    """Return the attempt token in the body or, if there is none, that of the attempt the credential was issued for."""
    return body_token if body_token is not None else call.caller.attempt


def to_costs(items: Sequence[CostItem]) -> tuple[Cost, ...]:
    return tuple(
        Cost(item.model, item.input_tokens, item.output_tokens, round(item.usd * MICROS_PER_USD)) for item in items
    )


# -- JSON --------------------------------------------------------------------------------------------------------


def encrypt_field(cipher: FieldCipher, zone_id: str, task_id: str, field: str, value: object) -> str | None:
    if value is None:
        return None
    try:
        encrypted = cipher.encrypt(value, (zone_id, TABLE, task_id, field))
    except Invalid as problem:
        # The cipher reports a path inside the value. Prefix that path with the field.
        raise with_field(problem, f"$.{_wire_name(field)}") from None
    return check_field_size(field, encrypted)


def check_field_size(field: str, text: str) -> str:
    if len(text) * 4 > FIELD_BYTES_MAX and len(text.encode()) > FIELD_BYTES_MAX:
        name = _wire_name(field)
        raise TooLarge("field_too_large", f"`{name}` is larger than 1 MiB.", field=f"$.{name}")
    return text


def with_field(problem: P, path: str) -> P:
    """Return a copy of the problem whose `field` is prefixed with `path`, the location of the value in the request.

    An `Invalid` or `TooLarge` problem always gets a field. Any other problem gets one only if it already has one.
    """
    field = problem.members.get("field")
    if field is None and not isinstance(problem, Invalid | TooLarge):
        return problem
    suffix = "" if field is None else str(field).removeprefix("$").removeprefix(".")
    copy = type(problem)(problem.code, problem.detail)
    copy.members.update(problem.members)
    copy.members["field"] = f"{path}{'.' if suffix and not suffix.startswith('[') else ''}{suffix}"
    return copy


def _wire_name(field: str) -> str:
    """The JSON name of a column: input_context → inputContext."""
    first, *rest = field.split("_")
    return first + "".join(word.title() for word in rest)


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def to_millis(time: datetime) -> Millis:
    return int(time.timestamp() * 1_000)
