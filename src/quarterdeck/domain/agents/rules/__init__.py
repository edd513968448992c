"""The pure part of agents, one file per question.

| module      | what it answers                                                                           |
|-------------|-------------------------------------------------------------------------------------------|
| lives       | how an agent stands by what was heard of it, and what it may still be given                 |
| registering | what becomes of what is said of an agent, and who may say it                                |
| refusals    | what can be refused, each with its sentence                                                 |
| showing     | what is shown of agents, and of how they fare                                               |
"""

from quarterdeck.domain.agents.rules.lives import (
    AGENT,
    Moved,
    beaten,
    claim_problem,
    expected_within,
    free_slots,
    is_silent,
    judged,
    kept,
    shown,
    terminated,
)
from quarterdeck.domain.agents.rules.refusals import (
    acting_problem,
    has_terminated,
    not_found,
    unknown_launcher,
)
from quarterdeck.domain.agents.rules.registering import Speaker, register, said_of
from quarterdeck.domain.agents.rules.showing import health_view, view

__all__ = [
    "AGENT",
    "Moved",
    "Speaker",
    "acting_problem",
    "beaten",
    "claim_problem",
    "expected_within",
    "free_slots",
    "has_terminated",
    "health_view",
    "is_silent",
    "judged",
    "kept",
    "not_found",
    "register",
    "said_of",
    "shown",
    "terminated",
    "unknown_launcher",
    "view",
]
