"""What the handlers of fleets share: which fleet, member and message a path names, and where lists go on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from quarterdeck.core import idempotency, paging
from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Conflict, Invalid
from quarterdeck.core.routing import Call
from quarterdeck.domain.fleets.model.bodies import MemberBody
from quarterdeck.domain.fleets.model.filters import OfFleet, OfMember, Position
from quarterdeck.engine.transaction import Engine, Transaction

T = TypeVar("T")
FLEET = "/api/v1/fleets/{fleet}"
MEMBER = FLEET + "/members/{member}"
MESSAGE = FLEET + "/messages/{message}"
READ, SPEAK, CHANGE = "fleets.read", "fleets.speak", "fleets.change"
SKILLS_MAX = 8 * 1024
"""Bytes."""
PROMPT_MAX = 120 * 1024
"""Bytes: a program is begun with a prompt as one of its arguments, and none of these is longer than 128 KiB."""
_Number = Annotated[int, Meta(ge=0, le=2**62)]


def fleet_id(call: Call) -> int:
    return int(call.params["fleet"])


def agent_id(call: Call) -> int:
    return int(call.params["member"])


def message_id(call: Call) -> int:
    return int(call.params["message"])


class Here(TypedDict):
    """What everything has that is asked in a fleet."""

    zone_id: str
    caller: Caller
    trace: str | None
    fleet_id: int


def here(call: Call) -> Here:
    """By whom, and in which fleet: `Cancel(**here(call), …)`."""
    return Here(zone_id=call.zone_id, caller=call.caller, trace=call.trace, fleet_id=fleet_id(call))


def of_fleet(call: Call) -> OfFleet:
    return OfFleet(**here(call))


def of_member(call: Call) -> OfMember:
    return OfMember(**here(call), agent_id=agent_id(call))


async def read(engine: Engine, call: Call, operation: Callable[[Transaction], Awaitable[T]]) -> T:
    """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
    return await engine.read(operation, zones={call.zone_id, call.caller.zone_id})


def key_of(call: Call) -> tuple[str | None, str]:
    """The request's key, and the digest of what it stands for."""
    key = idempotency.request_key(call.idempotency_key, None)
    if key is None:
        return None, ""
    assert isinstance(call.body, msgspec.Struct)
    return key, idempotency.request_digest(call.body)


def skills_of(body: MemberBody) -> str:
    """As JSON. They stand in the member's card, and all cards of a fleet are read together."""
    skills = msgspec.json.encode(body.skills)
    if len(skills) > SKILLS_MAX:
        raise Invalid("invalid_body", f"The skills are larger than {SKILLS_MAX} bytes.", field="skills")
    return skills.decode()


def refuse_long_prompt(body: MemberBody) -> None:
    used = len((body.prompt or "").encode())
    if used > PROMPT_MAX:
        detail = (
            f"The prompt has {used} bytes, and an agent can be begun with {PROMPT_MAX} at most: put it into a file, "
            "and have the agent read that."
        )
        raise Invalid("invalid_body", detail, field="prompt")


def no_panes_here() -> Conflict:
    return Conflict("no_panes_here", "This server has no panes: it cannot make, read or close one.")


# -- where lists go on -------------------------------------------------------------------------------------------


def number_of(listing: str, cursor: str) -> int:
    return _numbers(paging.decode(listing, cursor), 1)[0]


def position_of(listing: str, cursor: str) -> Position:
    return Position(*_numbers(paging.decode(listing, cursor), 2))


def _numbers(text: str, count: int) -> list[int]:
    try:
        found = [msgspec.convert(each, _Number, strict=False) for each in text.split(".")]
    except msgspec.ValidationError:
        found = []
    if len(found) != count:
        raise Invalid("invalid_cursor", "This cursor was not given out by this list.", field="cursor")
    return found
