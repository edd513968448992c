"""The card of a member: who is the fleet's administrator is known by it, and never by a name.

The name space `cafleet` in a card is the server's own: what callers say of themselves goes beside it.
"""

from __future__ import annotations

import re

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.domain.fleets.model.views import MemberKind

ADMINISTRATOR_NAME = "Administrator"
DIRECTOR_NAME = "Director"
ADMINISTRATOR_KIND: MemberKind = "builtin-administrator"
USER_KIND: MemberKind = "user"


class _ServerFields(msgspec.Struct, frozen=True):
    kind: str | None = None


class _Card(msgspec.Struct, frozen=True):
    cafleet: _ServerFields = _ServerFields()


_REGISTRY_ID_PATTERN = re.compile(r"fleet-([0-9]{1,16})-[0-9]{1,16}")
_decode_card = msgspec.json.Decoder(_Card).decode
_decode_skills = msgspec.json.Decoder(list[dict[str, object]]).decode


def build_card(name: str, description: str, skills: str = "[]") -> str:
    """`skills` are JSON, and read before they are written: as text, they could say what stands beside them."""
    fields = {"name": name, "description": description, "skills": _decode_skills(skills)}
    return msgspec.json.encode(fields).decode()


def build_administrator_card(fleet_id: int) -> str:
    fields = {
        "name": ADMINISTRATOR_NAME,
        "description": administrator_description(fleet_id),
        "skills": [],
        "cafleet": {"kind": ADMINISTRATOR_KIND},
    }
    return msgspec.json.encode(fields).decode()


def administrator_description(fleet_id: int) -> str:
    return f"Built-in administrator agent for fleet {fleet_id}"


def format_registry_id(fleet_id: int, agent_id: int) -> str:
    """Who a member is in the registry. Nobody else can be registered under such a name."""
    return f"fleet-{fleet_id}-{agent_id}"


def parse_fleet_id(agent_id: str) -> int | None:
    """Of which fleet an agent of the registry is a member."""
    match = _REGISTRY_ID_PATTERN.fullmatch(agent_id)
    return None if match is None else int(match[1])


def can_read_fleet(caller: Caller, fleet_id: int) -> bool:
    """An agent sees its own fleet: to it, others are not there."""
    return caller.agent_id is None or parse_fleet_id(caller.agent_id) == fleet_id


def member_kind(agent_card_json: str) -> MemberKind:
    return ADMINISTRATOR_KIND if _decode_card(agent_card_json).cafleet.kind == ADMINISTRATOR_KIND else USER_KIND
