"""Helpers that the fleet handlers share: path parameters, idempotency keys, size checks and cursors."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from quarterdeck.core import idempotency
from quarterdeck.core.errors import Conflict, Invalid
from quarterdeck.core.paging import Listing, PagedQuery
from quarterdeck.core.routing import AnyCall, Call, CallerFields
from quarterdeck.domain.fleets.model.bodies import MemberBody
from quarterdeck.domain.fleets.model.filters import FleetRequest, MemberRequest, Position
from quarterdeck.domain.fleets.operations.member_panes import PaneCaller

Row = TypeVar("Row")
FLEET_PATH = "/api/v1/fleets/{fleet}"
MEMBER_PATH = FLEET_PATH + "/members/{member}"
MESSAGE_PATH = FLEET_PATH + "/messages/{message}"
READ_PERMISSION, SPEAK_PERMISSION, CHANGE_PERMISSION = "fleets.read", "fleets.speak", "fleets.change"
SKILLS_BYTES_MAX = 8 * 1024
PROMPT_BYTES_MAX = 120 * 1024
"""The prompt is one argument of the agent's command line, and Linux limits an argument to 128 KiB."""
_Number = Annotated[int, Meta(ge=0, le=2**62)]


def path_fleet_id(call: AnyCall) -> int:
    return int(call.params["fleet"])


def path_agent_id(call: AnyCall) -> int:
    return int(call.params["member"])


def path_message_id(call: AnyCall) -> int:
    return int(call.params["message"])


class CommandFields(CallerFields):
    """The fields that all commands and read parameters for one fleet share."""

    fleet_id: int


def command_fields(call: AnyCall) -> CommandFields:
    """The zone, caller, trace and fleet of a request: `Cancel(**command_fields(call), …)`."""
    return {**call.caller_fields, "fleet_id": path_fleet_id(call)}


def fleet_request(call: AnyCall) -> FleetRequest:
    return FleetRequest(**command_fields(call))


def member_request(call: AnyCall) -> MemberRequest:
    return MemberRequest(**command_fields(call), agent_id=path_agent_id(call))


def pane_caller(call: AnyCall) -> PaneCaller:
    return PaneCaller(call.caller, call.is_unix_socket)


def key_and_digest(call: Call[msgspec.Struct, object]) -> tuple[str | None, str]:
    """The idempotency key of a request, and the digest of its body."""
    key = idempotency.request_key(call.idempotency_key, None)
    if key is None:
        return None, ""
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


def start_id(listing: Listing[Row], query: PagedQuery, default: int) -> int:
    """The id after which the requested page begins. The default for the first page."""
    key = listing.start_key(query)
    return default if key is None else _decode_numbers(key, 1)[0]


def start_position(listing: Listing[Row], query: PagedQuery) -> Position | None:
    key = listing.start_key(query)
    return None if key is None else Position(*_decode_numbers(key, 2))


def _decode_numbers(text: str, count: int) -> list[int]:
    try:
        numbers = [msgspec.convert(part, _Number, strict=False) for part in text.split(".")]
    except msgspec.ValidationError:
        numbers = []
    if len(numbers) != count:
        detail = "The cursor is not from this list. Use the `next_cursor` of its previous page."
        raise Invalid("invalid_cursor", detail, field="cursor")
    return numbers
