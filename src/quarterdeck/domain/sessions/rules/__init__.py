"""The pure rules of sessions.

| module     | decides                                                                             |
|------------|-------------------------------------------------------------------------------------|
| states     | the states, and how a session reads at a given time                                 |
| admission  | which spawns are admitted: the quota table                                          |
| cascade    | what is terminated together, in which order, and when it takes several transactions |
| suspension | which sessions a suspend flag suspends, and which are resumed when it is cleared    |
| explain    | why a session is in its state, and why a spawn would be refused                     |
"""

from quarterdeck.domain.access.rules import is_live as is_live
from quarterdeck.domain.sessions.rules.admission import BOUNDS as BOUNDS
from quarterdeck.domain.sessions.rules.states import (
    SESSION_STATES as SESSION_STATES,
    ownership_required as ownership_required,
    session_not_found as session_not_found,
)
