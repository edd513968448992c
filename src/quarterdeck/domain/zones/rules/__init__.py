"""The pure rules for zones.

| module           | decides                                                               |
|------------------|-----------------------------------------------------------------------|
| limits           | the effective limits of a zone, from overrides, defaults and ceilings |
| roles            | the role of a caller in a zone, and the table of permissions          |
| role_assignments | which role assignments a caller may create, change and remove         |
"""

from quarterdeck.domain.zones.rules.limits import (
    ZONE_NOT_FOUND as ZONE_NOT_FOUND,
    ended_zone_problems as ended_zone_problems,
    limits_from_quotas as limits_from_quotas,
    zone_admission_state as zone_admission_state,
    zone_ended as zone_ended,
    zone_not_found as zone_not_found,
)
from quarterdeck.domain.zones.rules.role_assignments import (
    RoleAssignmentBatch as RoleAssignmentBatch,
    member_not_found as member_not_found,
    member_view as member_view,
)
from quarterdeck.domain.zones.rules.roles import (
    PERMISSIONS as PERMISSIONS,
    can_access_zone as can_access_zone,
    effective_role as effective_role,
    hidden_zone_problem as hidden_zone_problem,
    permission_problem as permission_problem,
)
