"""The two PostgreSQL roles that a server acts as, and the SQL that creates and grants them.

Row-level security confines a transaction to the zones that its callers were authenticated for, even if a statement
lacks the condition on the zone. Superusers, owners of a table and roles with BYPASSRLS bypass it. So the tables belong
to the login that migrates them, and each connection of a server acts as one of two roles that own nothing:

| role                 | sees                                             | used by                                  |
|----------------------|--------------------------------------------------|------------------------------------------|
| `quarterdeck_server` | the zones in `quarterdeck.zones`                 | everything done for a caller             |
| `quarterdeck_sweep`  | all zones; deletes expired rows, seals the log   | sweeps, the tailer, lists across zones   |

Neither can log in. The login of the database URL acts as one of them through a startup option of each connection, so
that RESET ROLE returns to the role and not to the login. If the login may not act as the role, or if row-level security
does not apply to the role, the server does not start, and its error names the SQL that an administrator must run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

Role = Literal["quarterdeck_server", "quarterdeck_sweep"]
SERVER: Final = "quarterdeck_server"
SWEEP: Final = "quarterdeck_sweep"
ROLES: Final[tuple[Role, Role]] = (SERVER, SWEEP)


def create_roles_sql(roles: Sequence[Role] = ROLES) -> str:
    """SQL that creates the roles, for an administrator to run."""
    return " ".join(f"CREATE ROLE {role} NOLOGIN;" for role in roles)


def grant_roles_sql(login: str) -> str:
    """SQL that permits a login to act as the roles."""
    quoted = login.replace('"', '""')
    return f'GRANT {", ".join(ROLES)} TO "{quoted}";'


def role_denied_message(login: str, role: Role) -> str:
    return f"The login {login} may not act as {role}. An administrator must run: {grant_roles_sql(login)}"
