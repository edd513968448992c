"""The roles that have each permission, written by hand.

Tests of access compare the server with this table, not with the table in the code: a role that gains a permission by
mistake is then a failure.
"""

from __future__ import annotations

from quarterdeck.core.caller import Role

_ADMINS = frozenset({Role.OWNER, Role.ADMIN})
_HUMANS = _ADMINS | {Role.MEMBER}
_ALL = _HUMANS | {Role.AGENT}

ROLES_BY_PERMISSION = {
    "tasks.read": _ALL,
    "tasks.create": _ALL,
    "tasks.change": _HUMANS,
    "tasks.work": _ALL,
    "tasks.complete_paused": _ADMINS,
    "agents.read": _ALL,
    "agents.register": _ALL,
    "agents.terminate": _HUMANS,
    "agents.token": _ADMINS,
    "agents.beat": _ALL,
    "coordinator.use": _ADMINS,
    "members.read": _ADMINS,
    "members.change": _ADMINS,
    "webhooks.read": _ADMINS,
    "webhooks.change": _ADMINS,
    "fleets.read": _ALL,
    "fleets.speak": _ALL,
    "fleets.change": _HUMANS,
    "costs.read": _HUMANS,
    "budgets.change": _ADMINS,
}
