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
from quarterdeck.domain.fleets.model.filters import FleetRequest, MemberRequest, Position
from quarterdeck.engine.transaction import Engine, Transaction

T = TypeVar("T")
FLEET_PATH = "/api/v1/fleets/{fleet}"
MEMBER_PATH = FLEET_PATH + "/members/{member}"
MESSAGE_PATH = FLEET_PATH + "/messages/{message}"
READ_PERMISSION, SPEAK_PERMISSION, CHANGE_PERMISSION = "fleets.read", "fleets.speak", "fleets.change"
SKILLS_BYTES_MAX = 8 * 1024
"""Bytes."""
PROMPT_BYTES_MAX = 120 * 1024
"""Bytes: a program is begun with a prompt as one of its arguments, and none of these is longer than 128 KiB."""
_Number = Annotated[int, Meta(ge=0, le=2**62)]


def path_fleet_id(call: Call) -> int:
    return int(call.params["fleet"])


def path_agent_id(call: Call) -> int:
    return int(call.params["member"])


def path_message_id(call: Call) -> int:
    return int(call.params["message"])


class CommandFields(TypedDict):
    """What everything has that is asked in a fleet."""

    zone_id: str
    caller: Caller
    trace: str | None
    fleet_id: int


def command_fields(call: Call) -> CommandFields:
    """By whom, and in which fleet: `Cancel(**here(call), …)`."""
    return CommandFields(zone_id=call.zone_id, caller=call.caller, trace=call.trace, fleet_id=path_fleet_id(call))


def fleet_request(call: Call) -> FleetRequest:
    return FleetRequest(**command_fields(call))


def member_request(call: Call) -> MemberRequest:
    return MemberRequest(**command_fields(call), agent_id=path_agent_id(call))


async def read_for_call(engine: Engine, call: Call, operation: Callable[[Transaction], Awaitable[T]]) -> T:
    """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
    return await engine.read(operation, zones={call.zone_id, call.caller.zone_id})


def key_and_digest(call: Call) -> tuple[str | None, str]:
    """The request's key, and the digest of what it stands for."""
    key = idempotency.request_key(call.idempotency_key, None)
    if key is None:
        return None, ""
    assert isinstance(call.body, msgspec.Struct)
    return key, idempotency.request_digest(call.body)


def encode_skills(body: MemberBody) -> str:
    """As JSON. They stand in the member's card, and all cards of a fleet are read together."""
    skills = msgspec.json.encode(body.skills)
    if len(skills) > SKILLS_BYTES_MAX:
        raise Invalid("invalid_body", f"The skills are larger than {SKILLS_BYTES_MAX} bytes.", field="skills")
    return skills.decode()


def check_prompt_size(body: MemberBody) -> None:
    size = len((body.prompt or "").encode())
    if size > PROMPT_BYTES_MAX:
        detail = (
            f"The prompt has {size} bytes, and an agent can be begun with {PROMPT_BYTES_MAX} at most: put it into a file, "
            "and have the agent read that."
        )
        raise Invalid("invalid_body", detail, field="prompt")


def no_panes_error() -> Conflict:
    return Conflict("no_panes_here", "This server has no panes: it cannot make, read or close one.")


# -- where lists go on -------------------------------------------------------------------------------------------


def decode_id_cursor(listing: str, cursor: str) -> int:
    return _decode_numbers(paging.decode(listing, cursor), 1)[0]


def decode_position(listing: str, cursor: str) -> Position:
    return Position(*_decode_numbers(paging.decode(listing, cursor), 2))


def _decode_numbers(text: str, count: int) -> list[int]:
    try:
        numbers = [msgspec.convert(part, _Number, strict=False) for part in text.split(".")]
    except msgspec.ValidationError:
        numbers = []
    if len(numbers) != count:
        raise Invalid("invalid_cursor", "This cursor was not given out by this list.", field="cursor")
    return numbers
