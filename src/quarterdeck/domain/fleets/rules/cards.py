"""The card of a member: who is the fleet's administrator is known by it, and never by a name.

The name space `cafleet` in a card is the server's own: what callers say of themselves goes beside it.
"""

from __future__ import annotations

import msgspec

from quarterdeck.domain.fleets.model.views import Kind

ADMINISTRATOR = "Administrator"
DIRECTOR = "Director"
BUILTIN: Kind = "builtin-administrator"
USER: Kind = "user"


class _Own(msgspec.Struct, frozen=True):
    kind: str | None = None


class _Card(msgspec.Struct, frozen=True):
    cafleet: _Own = _Own()


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


def kind_of(agent_card_json: str) -> Kind:
    return BUILTIN if _own(agent_card_json).cafleet.kind == BUILTIN else USER
