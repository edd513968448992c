"""What can be done with webhooks, each verb over a batch: load under locks, decide by `rules`, write.

| module     | verbs                                                                             |
|------------|------------------------------------------------------------------------------------|
| changing   | create, change, rotate, remove, test, replay, disable: under the zone's lock         |
| delivering | take, report, settle: without it, each row guarded by its lease                      |
| looking    | endpoints, deliveries, and what deliverers look for                                |
| leaving    | what goes with a zone, and what is forgotten                                       |

Locks are taken in this order: the zone, endpoints, deliveries, the log.
"""

from quarterdeck.domain.webhooks.operations.cleanup import delete_expired, on_zone_ended
from quarterdeck.domain.webhooks.operations.deliveries import AttemptReporter, claim_deliveries, fail_pending_deliveries
from quarterdeck.domain.webhooks.operations.endpoints import EndpointUpdater
from quarterdeck.domain.webhooks.operations.reads import (
    PendingEndpoint,
    find_pending_endpoints,
    list_deliveries,
    list_endpoints,
)

__all__ = [
    "AttemptReporter",
    "EndpointUpdater",
    "PendingEndpoint",
    "claim_deliveries",
    "delete_expired",
    "fail_pending_deliveries",
    "find_pending_endpoints",
    "list_deliveries",
    "list_endpoints",
    "on_zone_ended",
]
