"""The operations of webhooks, each over a batch: load, decide with `rules`, persist.

| module     | holds                                                                                      |
|------------|--------------------------------------------------------------------------------------------|
| endpoints  | create, update, rotate secret, remove, test, replay, disable: under the zone's lock;       |
|            | the listener for ended zones, and retention                                                |
| deliveries | claim, report, fail pending: without that lock, each row guarded by its lease              |
| reads      | lists of endpoints and deliveries, and the search that delivery workers use                |

Locks are taken in this order: the zone, endpoints, deliveries, the log.
"""

from quarterdeck.domain.webhooks.operations.endpoints import on_zone_ended as on_zone_ended
