"""Helpers that the fleet handlers share: path parameters, idempotency keys, size checks and cursors."""

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
PROMPT_BYTES_MAX = 120 * 1024
"""The prompt is one argument of the agent's command line, and Linux limits an argument to 128 KiB."""
_Number = Annotated[int, Meta(ge=0, le=2**62)]


def path_fleet_id(call: Call) -> int:
    return int(call.params["fleet"])


def path_agent_id(call: Call) -> int:
    return int(call.params["member"])


def path_message_id(call: Call) -> int:
    return int(call.params["message"])


class CommandFields(TypedDict):
    """The fields that all commands and read parameters for one fleet share."""

    zone_id: str
    caller: Caller
    trace: str | None
    fleet_id: int


def command_fields(call: Call) -> CommandFields:
    """The zone, caller, trace and fleet of a request: `Cancel(**command_fields(call), …)`."""
    return CommandFields(zone_id=call.zone_id, caller=call.caller, trace=call.trace, fleet_id=path_fleet_id(call))


def fleet_request(call: Call) -> FleetRequest:
    return FleetRequest(**command_fields(call))


def member_request(call: Call) -> MemberRequest:
    return MemberRequest(**command_fields(call), agent_id=path_agent_id(call))


async def read_for_call(engine: Engine, call: Call, operation: Callable[[Transaction], Awaitable[T]]) -> T:
    """Read under row security, confined to the request's zone and the zone of the caller's own session."""
    return await engine.read(operation, zones={call.zone_id, call.caller.zone_id})


def key_and_digest(call: Call) -> tuple[str | None, str]:
    """The idempotency key of a request, and the digest of its body."""
    key = idempotency.request_key(call.idempotency_key, None)
    if key is None:
        return None, ""
    assert isinstance(call.body, msgspec.Struct)
    return key, idempotency.request_digest(call.body)


def encode_skills(body: MemberBody) -> str:
    """The skills as JSON. Their size is limited because all agent cards of a fleet are loaded together."""
    skills = msgspec.json.encode(body.skills)
    if len(skills) > SKILLS_BYTES_MAX:
        detail = f"The skills take {len(skills)} bytes as JSON; at most {SKILLS_BYTES_MAX} are allowed."
        raise Invalid("invalid_body", detail, field="skills")
    return skills.decode()


def check_prompt_size(body: MemberBody) -> None:
    size = len((body.prompt or "").encode())
    if size > PROMPT_BYTES_MAX:
        detail = (
            f"The prompt has {size} bytes; at most {PROMPT_BYTES_MAX} are allowed. "
            "Write it to a file and let the agent read the file."
        )
        raise Invalid("invalid_body", detail, field="prompt")


def no_panes_error() -> Conflict:
    return Conflict("no_panes_here", "This server has no access to panes: it cannot create, read or close them.")


# -- cursors -----------------------------------------------------------------------------------------------------


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
        detail = "The cursor is not from this list. Use the `next_cursor` of its previous page."
        raise Invalid("invalid_cursor", detail, field="cursor")
    return numbers
