"""The pure part of services, one file per question.

| module    | what it answers                                                                          |
|-----------|------------------------------------------------------------------------------------------|
| endpoints | which URLs may be registered, and which of them the server may be sent to                    |
| lives     | whether a service is registered, who reaches it by which path, and how it is shown           |
| shelf     | what a batch makes of services: from where it found them to where it leaves them             |
| registry  | what a registration makes: a new service, a known one, or one that was gone                  |
| changes   | what a change and a heartbeat make of a service                                              |
| leaving   | what becomes of a service when some of those who registered it are gone                      |
"""

from quarterdeck.domain.services.rules.batch_changes import Shelf, Told
from quarterdeck.domain.services.rules.endpoint_urls import endpoint_problem, push_problem
from quarterdeck.domain.services.rules.registration import Known, Registry
from quarterdeck.domain.services.rules.states import (
    Seen,
    is_registered,
    may_act,
    none_of_session,
    not_found,
    reached,
    view,
)
from quarterdeck.domain.services.rules.unregister import Left, left_behind
from quarterdeck.domain.services.rules.update import apply, beat, change, said_of

__all__ = [
    "Known",
    "Left",
    "Registry",
    "Seen",
    "Shelf",
    "Told",
    "apply",
    "beat",
    "change",
    "endpoint_problem",
    "is_registered",
    "left_behind",
    "may_act",
    "none_of_session",
    "not_found",
    "push_problem",
    "reached",
    "said_of",
    "view",
]
