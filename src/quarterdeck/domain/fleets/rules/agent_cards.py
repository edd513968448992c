"""The agent card of a member. The card, not the name, marks the fleet's administrator.

Only the server writes the key `cafleet` of a card. Values from callers are stored under other keys.
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
    """`skills` is JSON. It is decoded first, because as plain text it could overwrite other keys of the card."""
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
    """The id of a member in the agent registry. The registry reserves ids of this form for members."""
    return f"fleet-{fleet_id}-{agent_id}"


def parse_fleet_id(registry_id: str) -> int | None:
    """The fleet id in a registry id, or None if the agent is not a member of a fleet."""
    match = _REGISTRY_ID_PATTERN.fullmatch(registry_id)
    return None if match is None else int(match[1])


def can_read_fleet(caller: Caller, fleet_id: int) -> bool:
    """Whether the caller may see the fleet. An agent sees only its own fleet."""
    return caller.agent_id is None or parse_fleet_id(caller.agent_id) == fleet_id


def member_kind(agent_card_json: str) -> MemberKind:
    return ADMINISTRATOR_KIND if _decode_card(agent_card_json).cafleet.kind == ADMINISTRATOR_KIND else USER_KIND
