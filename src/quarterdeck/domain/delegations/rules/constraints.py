"""What a body asks for. Its constraints may say the same thing in several places; of those the narrowest counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

import msgspec

from quarterdeck.core.caller import ADMIN
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Invalid
from quarterdeck.domain.delegations.model import Constraints, Delegate, DelegateBody
from quarterdeck.domain.delegations.rules.states import self_delegation

_FIELD_PATH = re.compile(r" - at `\$\.?(.*)`$")


def normalize_body(body: DelegateBody) -> DelegateBody:
    """The body in one spelling, without its key: two that ask for the same are the same."""
    return msgspec.structs.replace(
        body, constraints=dict(_given_constraints(body)), constraints_json=None, idempotency_key=None
    )


def build_command(body: DelegateBody, base: Delegate) -> Delegate:
    """What `plain` asks for with all that the body says; refuses what contradicts itself."""
    if body.source_session_id == body.target_session_id:
        raise self_delegation()
    if ADMIN in body.scopes:
        raise Invalid(
            "invalid_scope",
            f"A delegation is within one zone, and {ADMIN} crosses zones: it is given by tokens alone.",
            field="scopes",
        )
    constraints = _given_constraints(body)
    parsed = _parse_constraints(constraints)
    times = [_to_millis(value) for value in (body.expires_at, parsed.expires_at) if value is not None]
    ttls = [value for value in (body.ttl_seconds, parsed.ttl_seconds) if value is not None]
    hops = [value for value in (parsed.max_hops, parsed.max_depth) if value is not None]
    return msgspec.structs.replace(
        base,
        scopes=tuple(sorted(set(body.scopes))),
        resources=_resources(body.resource_id, parsed.resources),
        resource_id=body.resource_id,
        actions=None if parsed.actions is None else tuple(sorted(set(parsed.actions))),
        budget=parsed.budget,
        hops=min(hops, default=None),
        expires_at=min(times, default=None),
        ttl_seconds=min(ttls, default=None),
        constraints=msgspec.json.encode(constraints).decode(),
        parent_edge_id=body.parent_edge_id,
        issuer_application_id=body.issuer_application_id,
        receiver_application_id=body.receiver_application_id,
    )


def _given_constraints(body: DelegateBody) -> Mapping[str, object]:
    constraints, alias = body.constraints, body.constraints_json
    if constraints is not None and alias is not None and constraints != alias:
        raise Invalid(
            "invalid_constraints", "`constraints` and `constraints_json` differ; give one.", field="constraints"
        )
    return constraints if constraints is not None else alias or {}


def _parse_constraints(constraints: Mapping[str, object]) -> Constraints:
    try:
        return msgspec.convert(constraints, Constraints)
    except msgspec.ValidationError as error:
        text = str(error)
        match = _FIELD_PATH.search(text)
        field = f"constraints.{match[1]}" if match and match[1] else "constraints"
        raise Invalid("invalid_constraints", f"{_FIELD_PATH.sub('', text)}.", field=field) from None


def _resources(resource_id: str | None, resource_ids: list[str] | None) -> tuple[str, ...] | None:
    if resource_id is None and resource_ids is None:
        return None
    return tuple(sorted({*(resource_ids or ()), *((resource_id,) if resource_id is not None else ())}))


def _to_millis(instant: datetime) -> Millis:
    # In whole numbers: a float cannot tell the milliseconds of a far century apart.
    seconds = int(instant.replace(microsecond=0).timestamp())
    return seconds * 1_000 + instant.microsecond // 1_000
