"""The pure rules for zones.

| module           | decides                                                               |
|------------------|-----------------------------------------------------------------------|
| limits           | the effective limits of a zone, from overrides, defaults and ceilings |
| roles            | the role of a caller in a zone, and the table of permissions          |
| role_assignments | which role assignments a caller may create, change and remove         |
"""

from quarterdeck.domain.zones.rules.limits import (
    ZONE_NOT_FOUND,
    effective_limits,
    encode_overrides,
    ended_zone_problems,
    limits_from_quotas,
    merge_overrides,
    overrides_of_zone,
    quotas_view,
    view,
    zone_admission_state,
    zone_ended,
    zone_not_found,
)
from quarterdeck.domain.zones.rules.role_assignments import (
    RoleAssignmentBatch,
    RoleCounts,
    member_not_found,
    member_view,
)
from quarterdeck.domain.zones.rules.roles import (
    PERMISSIONS,
    can_access_zone,
    effective_role,
    forbidden_role,
    hidden_zone_problem,
    not_a_member,
    permission_problem,
)

__all__ = [
    "PERMISSIONS",
    "ZONE_NOT_FOUND",
    "RoleAssignmentBatch",
    "RoleCounts",
    "can_access_zone",
    "effective_limits",
    "effective_role",
    "encode_overrides",
    "ended_zone_problems",
    "forbidden_role",
    "hidden_zone_problem",
    "limits_from_quotas",
    "member_not_found",
    "member_view",
    "merge_overrides",
    "not_a_member",
    "overrides_of_zone",
    "permission_problem",
    "quotas_view",
    "view",
    "zone_admission_state",
    "zone_ended",
    "zone_not_found",
]
