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
from quarterdeck.domain.delegations.rules.states import to_itself

_WHERE = re.compile(r" - at `\$\.?(.*)`$")


def defaulted(body: DelegateBody) -> DelegateBody:
    """The body in one spelling, without its key: two that ask for the same are the same."""
    return msgspec.structs.replace(body, constraints=dict(_given(body)), constraints_json=None, idempotency_key=None)


def asked(body: DelegateBody, plain: Delegate) -> Delegate:
    """What `plain` asks for with all that the body says; refuses what contradicts itself."""
    if body.source_session_id == body.target_session_id:
        raise to_itself()
    if ADMIN in body.scopes:
        raise Invalid(
            "invalid_scope",
            f"A delegation is within one zone, and {ADMIN} crosses zones: it is given by tokens alone.",
            field="scopes",
        )
    given = _given(body)
    understood = _understood(given)
    times = [_millis(each) for each in (body.expires_at, understood.expires_at) if each is not None]
    spans = [each for each in (body.ttl_seconds, understood.ttl_seconds) if each is not None]
    hops = [each for each in (understood.max_hops, understood.max_depth) if each is not None]
    return msgspec.structs.replace(
        plain,
        scopes=tuple(sorted(set(body.scopes))),
        resources=_resources(body.resource_id, understood.resources),
        resource_id=body.resource_id,
        actions=None if understood.actions is None else tuple(sorted(set(understood.actions))),
        budget=understood.budget,
        hops=min(hops, default=None),
        expires_at=min(times, default=None),
        ttl_seconds=min(spans, default=None),
        constraints=msgspec.json.encode(given).decode(),
        parent_edge_id=body.parent_edge_id,
        issuer_application_id=body.issuer_application_id,
        receiver_application_id=body.receiver_application_id,
    )


def _given(body: DelegateBody) -> Mapping[str, object]:
    one, other = body.constraints, body.constraints_json
    if one is not None and other is not None and one != other:
        raise Invalid(
            "invalid_constraints", "`constraints` and `constraints_json` differ; give one.", field="constraints"
        )
    return one if one is not None else other or {}


def _understood(given: Mapping[str, object]) -> Constraints:
    try:
        return msgspec.convert(given, Constraints)
    except msgspec.ValidationError as error:
        text = str(error)
        where = _WHERE.search(text)
        field = f"constraints.{where[1]}" if where and where[1] else "constraints"
        raise Invalid("invalid_constraints", f"{_WHERE.sub('', text)}.", field=field) from None


def _resources(named: str | None, listed: list[str] | None) -> tuple[str, ...] | None:
    if named is None and listed is None:
        return None
    return tuple(sorted({*(listed or ()), *((named,) if named is not None else ())}))


def _millis(instant: datetime) -> Millis:
    # In whole numbers: a float cannot tell the milliseconds of a far century apart.
    seconds = int(instant.replace(microsecond=0).timestamp())
    return seconds * 1_000 + instant.microsecond // 1_000
