"""Who this server is to PostgreSQL, and why it would rather not start than be somebody else.

Row-level security is the second wall around a zone: whatever a statement forgets to name, the database shows and
changes rows of the zones its transaction was authenticated for, and no others. A wall holds only those who cannot walk
around it, and superusers, owners of a table and roles with BYPASSRLS can. So the tables belong to whoever migrates
them, and a server acts as one of two roles that own nothing:

| role                 | sees                                           | used by                                  |
|----------------------|------------------------------------------------|------------------------------------------|
| `quarterdeck_server` | the zones named in `quarterdeck.zones`         | everything done for a caller             |
| `quarterdeck_sweep`  | every zone; removes what is old, seals the log  | sweeps, the tailer, lists across zones   |

Neither can log in. The login of the database's URL becomes one of them by a startup option of each connection, so that
RESET ROLE returns to the role and not to the login. A login that may not, or a role that the wall would not hold,
stops the start with a sentence that says what an administrator has to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

Role = Literal["quarterdeck_server", "quarterdeck_sweep"]
SERVER: Final = "quarterdeck_server"
SWEEP: Final = "quarterdeck_sweep"
ROLES: Final[tuple[Role, Role]] = (SERVER, SWEEP)


def create_roles_sql(roles: Sequence[Role] = ROLES) -> str:
    """What makes the roles, for an administrator to run."""
    return " ".join(f"CREATE ROLE {role} NOLOGIN;" for role in roles)


def grant_roles_sql(login: str) -> str:
    """What lets a login act as them."""
    quoted = login.replace('"', '""')
    return f'GRANT {", ".join(ROLES)} TO "{quoted}";'


def role_denied_message(login: str, role: Role) -> str:
    return f"The login {login} may not act as {role}. An administrator has to run: {grant_roles_sql(login)}"
