"""Operations of access.

| module           | operations                                                             |
|------------------|------------------------------------------------------------------------|
| callers          | lock the zones of a batch, and check the session, agent and role of each caller |
| role_assignments | create, change, remove and read role assignments                       |
"""

from quarterdeck.domain.access.operations.callers import (
    Batch as Batch,
    BatchWithRoles as BatchWithRoles,
    load as load,
    load_with_roles as load_with_roles,
    lock as lock,
    lock_with_roles as lock_with_roles,
    require_permission as require_permission,
    require_token as require_token,
    with_caller_check as with_caller_check,
)
