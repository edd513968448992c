"""The pure part of zones, one file per question.

| module  | what it answers                                                                        |
|---------|----------------------------------------------------------------------------------------|
| limits  | how overrides and defaults become the limits in force                                  |
| roles   | what a bearer is in a workspace, and what each role may do: the one table of powers     |
| members | who may be made a member, and as what                                                  |
"""

from quarterdeck.domain.zones.rules.limits import (
    ZONE_NOT_FOUND,
    admission_of_zone,
    effective_limits,
    encode_overrides,
    ended_zone_problems,
    limits_from_quotas,
    merge_overrides,
    overrides_of_zone,
    quotas_view,
    view,
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
    not_a_member,
    permission_problem,
    workspace_not_found,
)

__all__ = [
    "PERMISSIONS",
    "ZONE_NOT_FOUND",
    "RoleAssignmentBatch",
    "RoleCounts",
    "admission_of_zone",
    "can_access_zone",
    "effective_limits",
    "effective_role",
    "encode_overrides",
    "ended_zone_problems",
    "forbidden_role",
    "limits_from_quotas",
    "member_not_found",
    "member_view",
    "merge_overrides",
    "not_a_member",
    "overrides_of_zone",
    "permission_problem",
    "quotas_view",
    "view",
    "workspace_not_found",
    "zone_ended",
    "zone_not_found",
]
