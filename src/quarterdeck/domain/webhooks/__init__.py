"""Webhooks: the events of a zone, sent to the HTTP endpoints that its administrators register.

    event log ─► fan-out (one process at a time) ─► rows of deliveries ─► delivery (every server) ─► the endpoint
                   which endpoints get an event        pending              attempts: signed, limited, retried

**Which events.** An endpoint names event types (`rules.payloads`). A matching event of the log becomes one delivery,
which has the id of the event. The body for a task's status change has a published format; for all other events, the
body contains the event's data.

**Written once, delivered at least once.** The sink `webhooks` writes deliveries and its position in one transaction,
under the fence of its lease. The key of a delivery is its endpoint and its event, so a process that continues after a
crash writes no delivery twice. An attempt may be repeated, because a response may be lost; the `webhook-id` stays the
same. Deliveries to one endpoint are sent concurrently and retried separately, so their order is not guaranteed. Each
body has a timestamp.

**Attempts.** The first attempt is immediate. Retries follow after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and
24 h, each with random jitter. The time of the next attempt is stored in the row, so it survives restarts. While a
delivery is being sent, the same column holds the expiry of its lease: if the server dies, the delivery is due again at
that time. After ten failed attempts, the delivery becomes failed; it is still listed and can be replayed.

**Disabled endpoints.** Status 410 disables an endpoint, and so do days of failures or a backlog above its limit; each
writes an event `webhook.disabled`. Pending deliveries of a disabled or removed endpoint become failed. Ending a zone
removes its endpoints.

**Secrets** are derived from the endpoint and a number, and not stored (`core.webhook_signing`). For a day after a
rotation the previous secret signs too.

How it fails. While the database is unreachable, nothing is sent. A slow endpoint uses only its own slots and those of
its zone. The address is checked at each attempt, because DNS may change. If it is blocked, no connection is made, and
the attempt fails. Redirects count as failures and are not followed.

| module          | holds                                                                 |
|-----------------|-----------------------------------------------------------------------|
| model           | webhooks as requested, stored and returned                            |
| rules           | matching of events, bodies, retry schedule, endpoints                 |
| operations      | the operations, over batches                                          |
| background      | the sink that turns events into deliveries, and the attempts          |
| sweeps          | retention                                                             |
"""
