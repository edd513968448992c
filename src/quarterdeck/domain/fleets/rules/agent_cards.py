"""The card of a member: who is the fleet's administrator is known by it, and never by a name.

The name space `cafleet` in a card is the server's own: what callers say of themselves goes beside it.
"""

from __future__ import annotations

import re

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.domain.fleets.model.views import Kind

ADMINISTRATOR = "Administrator"
DIRECTOR = "Director"
BUILTIN: Kind = "builtin-administrator"
USER: Kind = "user"


class _Own(msgspec.Struct, frozen=True):
    kind: str | None = None


class _Card(msgspec.Struct, frozen=True):
    cafleet: _Own = _Own()


_MEMBER = re.compile(r"fleet-([0-9]{1,16})-[0-9]{1,16}")
_own = msgspec.json.Decoder(_Card).decode
_skills = msgspec.json.Decoder(list[dict[str, object]]).decode


def card(name: str, description: str, skills: str = "[]") -> str:
    """`skills` are JSON, and read before they are written: as text, they could say what stands beside them."""
    said = {"name": name, "description": description, "skills": _skills(skills)}
    return msgspec.json.encode(said).decode()


def administrators_card(fleet_id: int) -> str:
    said = {
        "name": ADMINISTRATOR,
        "description": described_administrator(fleet_id),
        "skills": [],
        "cafleet": {"kind": BUILTIN},
    }
    return msgspec.json.encode(said).decode()


def described_administrator(fleet_id: int) -> str:
    return f"Built-in administrator agent for fleet {fleet_id}"


def registry_id(fleet_id: int, agent_id: int) -> str:
    """Who a member is in the registry. Nobody else can be registered under such a name."""
    return f"fleet-{fleet_id}-{agent_id}"


def fleet_of(agent_id: str) -> int | None:
    """Of which fleet an agent of the registry is a member."""
    found = _MEMBER.fullmatch(agent_id)
    return None if found is None else int(found[1])


def may_look(caller: Caller, fleet_id: int) -> bool:
    """An agent sees its own fleet: to it, others are not there."""
    return caller.agent_id is None or fleet_of(caller.agent_id) == fleet_id


def kind_of(agent_card_json: str) -> Kind:
    return BUILTIN if _own(agent_card_json).cafleet.kind == BUILTIN else USER
