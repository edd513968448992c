"""Parses a delegation request. If a limit is given in several fields, the narrowest applies."""

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
    """Return the body without alias fields and idempotency key, so that equal requests have equal digests."""
    return msgspec.structs.replace(
        body, constraints=dict(_given_constraints(body)), constraints_json=None, idempotency_key=None
    )


def build_command(body: DelegateBody, base: Delegate) -> Delegate:
    """Add the fields of the body to `base`. Raises Invalid if the body is not valid."""
    if body.source_session_id == body.target_session_id:
        raise self_delegation()
    if ADMIN in body.scopes:
        raise Invalid(
            "invalid_scope",
            f"{ADMIN} applies to all zones and cannot be delegated within one. Only a token can grant it.",
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
            "invalid_constraints",
            "`constraints` and `constraints_json` differ. Send only one of them.",
            field="constraints",
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
    # Integer arithmetic: a float has too little precision for milliseconds in distant centuries.
    seconds = int(instant.replace(microsecond=0).timestamp())
    return seconds * 1_000 + instant.microsecond // 1_000
