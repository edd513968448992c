"""What a bearer is in a workspace, and what that allows: one table, which the documentation shows and every route of a
workspace is held against."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller, Role
from quarterdeck.core.errors import Forbidden, NotFound, Problem

_ALL_ROLES = frozenset(Role)
_HUMAN_ROLES = _ALL_ROLES - {Role.AGENT}
_ADMIN_ROLES = frozenset({Role.OWNER, Role.ADMIN})

PERMISSIONS: Mapping[str, frozenset[Role]] = {
    "tasks.read": _ALL_ROLES,
    # An agent that finds that more is to be done says so by a task.
    "tasks.create": _ALL_ROLES,
    "tasks.change": _HUMAN_ROLES,
    "tasks.work": _ALL_ROLES,
    # By hand and without a token: nobody can tell any more whether the work was done.
    "tasks.complete_paused": _ADMIN_ROLES,
    "agents.read": _ALL_ROLES,
    # An agent registers itself and no other.
    "agents.register": _ALL_ROLES,
    "agents.terminate": _HUMAN_ROLES,
    # It outlives the membership of whoever had it made, and is given its agent's tasks with their secrets.
    "agents.token": _ADMIN_ROLES,
    "agents.beat": _ALL_ROLES,
    "coordinator.use": _ADMIN_ROLES,
    "members.read": _ADMIN_ROLES,
    "members.change": _ADMIN_ROLES,
    # The address of an endpoint is often a secret of its own.
    "webhooks.read": _ADMIN_ROLES,
    "webhooks.change": _ADMIN_ROLES,
    "fleets.read": _ALL_ROLES,
    # As whom, the fleet says: an agent speaks as the member it is, and as no other.
    "fleets.speak": _ALL_ROLES,
    "fleets.change": _HUMAN_ROLES,
    "costs.read": _HUMAN_ROLES,
    "budgets.change": _ADMIN_ROLES,
}
"""Each power, and the roles that have it."""


def effective_role(caller: Caller, zone_id: str, assigned_role: Role | None) -> Role | None:
    """What a caller is in a workspace in which this row is its own, if it has one. A token that names an agent is that
    agent's and no more, whatever else stands in it: it is handed to programs that nobody watches."""
    if caller.agent_id is not None:
        return Role.AGENT if caller.zone_id == zone_id else None
    if caller.is_admin:
        return Role.OWNER
    if caller.zone_id != zone_id:
        # Names are given by a zone's issuer: the same name in another zone is somebody else.
        return None
    if assigned_role is not None or caller.role is not None:
        return assigned_role or caller.role
    if COORDINATOR_ADMIN in caller.scopes:
        return Role.ADMIN
    return Role.MEMBER if caller.is_local else None


def can_access_zone(caller: Caller, zone_id: str) -> bool:
    """Whether a workspace is there at all, for this caller. What it may do in it, its role says."""
    return caller.zone_id == zone_id or (caller.is_admin and caller.agent_id is None)


def permission_problem(caller: Caller, zone_id: str, assigned_role: Role | None, permission: str) -> Problem | None:
    """Why a caller may not use a power in a workspace, if it may not."""
    if not can_access_zone(caller, zone_id):
        return workspace_not_found(zone_id)
    role = effective_role(caller, zone_id, assigned_role)
    if role is None:
        return not_a_member(zone_id)
    return None if role in PERMISSIONS[permission] else forbidden_role(role, permission)


# -- refusals ----------------------------------------------------------------------------------------------------


def workspace_not_found(zone_id: str) -> NotFound:
    """The same for one that does not exist and for one of others: nobody learns which there are."""
    return NotFound("workspace_not_found", f"There is no workspace {zone_id!r} for this token.")


def not_a_member(zone_id: str) -> Forbidden:
    return Forbidden(
        "not_a_member",
        f"Whoever shows this token is no member of the workspace {zone_id!r}, and the token gives no role.",
        frees="an OWNER or ADMIN makes them a member",
    )


def forbidden_role(role: Role, permission: str) -> Forbidden:
    allowed = [candidate.value for candidate in Role if candidate in PERMISSIONS[permission]]
    return Forbidden(
        "forbidden_role",
        f"The role {role} may not do this; it needs {' or '.join(allowed)}.",
        role=str(role),
        power=permission,
        allowed=allowed,
    )
