"""The pure part of webhooks: no clock, no chance, no I/O.

| module    | what it decides                                                    |
|-----------|---------------------------------------------------------------------|
| types     | what an endpoint may hear of, and what an event counts as            |
| messages  | the body of a delivery                                              |
| lives     | the states of a delivery, when the next attempt is due, what an answer means |
| endpoints | which endpoints there may be, and how they change                   |
| showing   | how both are shown                                                  |
"""

from quarterdeck.domain.webhooks.rules.endpoints import (
    EndpointPolicy,
    normalize_types,
    not_found,
    types_problem,
    url_problem,
)
from quarterdeck.domain.webhooks.rules.states import DELIVERY_STATES

__all__ = ["DELIVERY_STATES", "EndpointPolicy", "normalize_types", "not_found", "types_problem", "url_problem"]
