"""The pure part of agents, one file per question.

| module      | what it answers                                                                           |
|-------------|-------------------------------------------------------------------------------------------|
| lives       | how an agent stands by what was heard of it, and what it may still be given                 |
| registering | what becomes of what is said of an agent, and who may say it, or end one                    |
| refusals    | what can be refused, each with its sentence                                                 |
| showing     | what is shown of agents, and of how they fare                                               |
"""

from quarterdeck.domain.agents.rules.errors import (
    acting_problem,
    bearer_problem,
    has_terminated,
    not_found,
    unknown_launcher,
)
from quarterdeck.domain.agents.rules.registration import Speaker, ending_problem, loses_all, register, said_of
from quarterdeck.domain.agents.rules.states import (
    AGENT,
    Moved,
    beaten,
    claim_problem,
    expected_within,
    free_slots,
    heard_within,
    is_news,
    is_silent,
    is_unheard,
    judged,
    kept,
    shown,
    terminated,
    was_just_heard,
)
from quarterdeck.domain.agents.rules.views import health_view, view

__all__ = [
    "AGENT",
    "Moved",
    "Speaker",
    "acting_problem",
    "bearer_problem",
    "beaten",
    "claim_problem",
    "ending_problem",
    "expected_within",
    "free_slots",
    "has_terminated",
    "health_view",
    "heard_within",
    "is_news",
    "is_silent",
    "is_unheard",
    "judged",
    "kept",
    "loses_all",
    "not_found",
    "register",
    "said_of",
    "shown",
    "terminated",
    "unknown_launcher",
    "view",
    "was_just_heard",
]
