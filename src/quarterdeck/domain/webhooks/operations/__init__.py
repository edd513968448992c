"""What can be done with webhooks, each verb over a batch: load under locks, decide by `rules`, write.

| module     | verbs                                                                             |
|------------|------------------------------------------------------------------------------------|
| changing   | create, change, rotate, remove, test, replay, disable: under the zone's lock         |
| delivering | take, report, settle: without it, each row guarded by its lease                      |
| looking    | endpoints, deliveries, and what deliverers look for                                |
| leaving    | what goes with a zone, and what is forgotten                                       |

Locks are taken in this order: the zone, endpoints, deliveries, the log.
"""

from quarterdeck.domain.webhooks.operations.cleanup import forget, go_with_zone
from quarterdeck.domain.webhooks.operations.deliveries import Reporter, settle, take
from quarterdeck.domain.webhooks.operations.endpoints import Changer
from quarterdeck.domain.webhooks.operations.reads import Waiting, deliveries, endpoints, to_take

__all__ = [
    "Changer",
    "Reporter",
    "Waiting",
    "deliveries",
    "endpoints",
    "forget",
    "go_with_zone",
    "settle",
    "take",
    "to_take",
]
