"""What a bearer is in a workspace, and what that allows: one table, which the documentation shows and every route of a
workspace is held against."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller, Role
from quarterdeck.core.errors import Forbidden, NotFound, Problem

_ALL = frozenset(Role)
_PEOPLE = _ALL - {Role.AGENT}
_RULERS = frozenset({Role.OWNER, Role.ADMIN})

POWERS: Mapping[str, frozenset[Role]] = {
    "tasks.read": _ALL,
    # An agent that finds that more is to be done says so by a task.
    "tasks.create": _ALL,
    "tasks.change": _PEOPLE,
    "tasks.work": _ALL,
    # By hand and without a token: nobody can tell any more whether the work was done.
    "tasks.complete_paused": _RULERS,
    "agents.read": _ALL,
    # An agent registers itself and no other.
    "agents.register": _ALL,
    "agents.terminate": _PEOPLE,
    # It outlives the membership of whoever had it made, and is given its agent's tasks with their secrets.
    "agents.token": _RULERS,
    "agents.beat": _ALL,
    "coordinator.use": _RULERS,
    "members.read": _RULERS,
    "members.change": _RULERS,
    # The address of an endpoint is often a secret of its own.
    "webhooks.read": _RULERS,
    "webhooks.change": _RULERS,
    "fleets.read": _ALL,
    # As whom, the fleet says: an agent speaks as the member it is, and as no other.
    "fleets.speak": _ALL,
    "fleets.change": _PEOPLE,
    "costs.read": _PEOPLE,
    "budgets.change": _RULERS,
}
"""Each power, and the roles that have it."""


def role_of(caller: Caller, zone_id: str, row: Role | None) -> Role | None:
    """What a caller is in a workspace in which this row is its own, if it has one. A token that names an agent is that
    agent's and no more, whatever else stands in it: it is handed to programs that nobody watches."""
    if caller.agent_id is not None:
        return Role.AGENT if caller.zone_id == zone_id else None
    if caller.is_admin:
        return Role.OWNER
    if caller.zone_id != zone_id:
        # Names are given by a zone's issuer: the same name in another zone is somebody else.
        return None
    if row is not None or caller.role is not None:
        return row or caller.role
    if COORDINATOR_ADMIN in caller.scopes:
        return Role.ADMIN
    return Role.MEMBER if caller.is_local else None


def may_enter(caller: Caller, zone_id: str) -> bool:
    """Whether a workspace is there at all, for this caller. What it may do in it, its role says."""
    return caller.zone_id == zone_id or (caller.is_admin and caller.agent_id is None)


def power_problem(caller: Caller, zone_id: str, row: Role | None, power: str) -> Problem | None:
    """Why a caller may not use a power in a workspace, if it may not."""
    if not may_enter(caller, zone_id):
        return zone_hidden(zone_id)
    role = role_of(caller, zone_id, row)
    if role is None:
        return not_a_member(zone_id)
    return None if role in POWERS[power] else forbidden_role(role, power)


# -- refusals ----------------------------------------------------------------------------------------------------


def zone_hidden(zone_id: str) -> NotFound:
    """The same for one that does not exist and for one of others: nobody learns which there are."""
    return NotFound("workspace_not_found", f"There is no workspace {zone_id!r} for this token.")


def not_a_member(zone_id: str) -> Forbidden:
    return Forbidden(
        "not_a_member",
        f"Whoever shows this token is no member of the workspace {zone_id!r}, and the token gives no role.",
        frees="an OWNER or ADMIN makes them a member",
    )


def forbidden_role(role: Role, power: str) -> Forbidden:
    allowed = [each.value for each in Role if each in POWERS[power]]
    return Forbidden(
        "forbidden_role",
        f"The role {role} may not do this; it needs {' or '.join(allowed)}.",
        role=str(role),
        power=power,
        allowed=allowed,
    )
