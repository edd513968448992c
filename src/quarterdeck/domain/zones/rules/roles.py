"""Roles in a workspace and their permissions.

`PERMISSIONS` is the only table of permissions. Every workspace operation is checked against it, and the API
documentation shows its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller, Role
from quarterdeck.core.errors import Forbidden, NotFound, Problem

_ALL_ROLES = frozenset(Role)
_HUMAN_ROLES = _ALL_ROLES - {Role.AGENT}
_ADMIN_ROLES = frozenset({Role.OWNER, Role.ADMIN})

PERMISSIONS: Mapping[str, frozenset[Role]] = {
    "tasks.read": _ALL_ROLES,
    # An agent that finds more work creates a task for it.
    "tasks.create": _ALL_ROLES,
    "tasks.change": _HUMAN_ROLES,
    "tasks.work": _ALL_ROLES,
    # Needs no attempt token, so the server cannot check that the work was done.
    "tasks.complete_paused": _ADMIN_ROLES,
    "agents.read": _ALL_ROLES,
    # An agent may register only itself.
    "agents.register": _ALL_ROLES,
    "agents.terminate": _HUMAN_ROLES,
    # The token stays valid when its creator's role is removed, and it can read the agent's tasks with their secrets.
    "agents.token": _ADMIN_ROLES,
    "agents.beat": _ALL_ROLES,
    "coordinator.use": _ADMIN_ROLES,
    "members.read": _ADMIN_ROLES,
    "members.change": _ADMIN_ROLES,
    # The URL of an endpoint often contains a secret.
    "webhooks.read": _ADMIN_ROLES,
    "webhooks.change": _ADMIN_ROLES,
    "fleets.read": _ALL_ROLES,
    # The fleet checks the sender: an agent may act only as its own member.
    "fleets.speak": _ALL_ROLES,
    "fleets.change": _HUMAN_ROLES,
    "costs.read": _HUMAN_ROLES,
    "budgets.change": _ADMIN_ROLES,
}
"""Permission → the roles that have it."""


def effective_role(caller: Caller, zone_id: str, assigned_role: Role | None) -> Role | None:
    """The role of a caller in a zone. `assigned_role` is the caller's stored role there, if any.

    A token with an agent id has the role AGENT only, whatever its other claims are, because such tokens are given to
    unattended programs.
    """
    if caller.agent_id is not None:
        return Role.AGENT if caller.zone_id == zone_id else None
    if caller.is_admin:
        return Role.OWNER
    if caller.zone_id != zone_id:
        # Subjects belong to a zone's issuer: the same subject in another zone may be a different person.
        return None
    if assigned_role is not None or caller.role is not None:
        return assigned_role or caller.role
    if COORDINATOR_ADMIN in caller.scopes:
        return Role.ADMIN
    return Role.MEMBER if caller.is_local else None


def can_access_zone(caller: Caller, zone_id: str) -> bool:
    """Whether the caller may learn that the workspace exists. The caller's role decides what it may do there."""
    return caller.zone_id == zone_id or (caller.is_admin and caller.agent_id is None)


def permission_problem(caller: Caller, zone_id: str, assigned_role: Role | None, permission: str) -> Problem | None:
    """The problem if the caller does not have the permission in the workspace, or None."""
    if not can_access_zone(caller, zone_id):
        return hidden_zone_problem(zone_id)
    role = effective_role(caller, zone_id, assigned_role)
    if role is None:
        return not_a_member(zone_id)
    return None if role in PERMISSIONS[permission] else forbidden_role(role, permission)


# -- errors ------------------------------------------------------------------------------------------------------


def hidden_zone_problem(zone_id: str) -> NotFound:
    """The error for a missing zone and for a zone that the caller cannot access, which must not be distinguishable."""
    return NotFound("workspace_not_found", f"Workspace {zone_id!r} does not exist, or this token cannot access it.")


def not_a_member(zone_id: str) -> Forbidden:
    return Forbidden(
        "not_a_member",
        f"The token's subject is not a member of workspace {zone_id!r}, and the token has no role claim.",
        frees="an OWNER or ADMIN adds the subject as a member",
    )


def forbidden_role(role: Role, permission: str) -> Forbidden:
    allowed_roles = [candidate.value for candidate in Role if candidate in PERMISSIONS[permission]]
    return Forbidden(
        "forbidden_role",
        f"Role {role} does not have the permission {permission}. Required role: {' or '.join(allowed_roles)}.",
        role=str(role),
        power=permission,
        allowed=allowed_roles,
    )
