"""The pure part of zones, one file per question.

| module  | what it answers                                                                        |
|---------|----------------------------------------------------------------------------------------|
| limits  | how overrides and defaults become the limits in force                                  |
| roles   | what a bearer is in a workspace, and what each role may do: the one table of powers     |
| members | who may be made a member, and as what                                                  |
"""

from quarterdeck.domain.zones.rules.limits import (
    ZONE_NOT_FOUND,
    endings,
    has_ended,
    in_force,
    limits_by,
    merge,
    not_found,
    overrides_of,
    quotas_view,
    stored,
    terms,
    view,
)
from quarterdeck.domain.zones.rules.role_assignments import Counted, Roster, member_not_found, member_view
from quarterdeck.domain.zones.rules.roles import (
    POWERS,
    forbidden_role,
    may_enter,
    not_a_member,
    power_problem,
    role_of,
    zone_hidden,
)

__all__ = [
    "POWERS",
    "ZONE_NOT_FOUND",
    "Counted",
    "Roster",
    "endings",
    "forbidden_role",
    "has_ended",
    "in_force",
    "limits_by",
    "may_enter",
    "member_not_found",
    "member_view",
    "merge",
    "not_a_member",
    "not_found",
    "overrides_of",
    "power_problem",
    "quotas_view",
    "role_of",
    "stored",
    "terms",
    "view",
    "zone_hidden",
]
