"""Webhooks: what happens in a zone, told to the HTTP endpoints that its administrators name.

    the log ─► telling (one process at a time) ─► rows of deliveries ─► delivering (every server) ─► the endpoint
                 which endpoints hear of it          pending                an attempt: signed, pinned, bounded

**What is told.** An endpoint names types (`rules.types`); an event of the log that is one of them becomes one
delivery, whose id is the event's. The body of a change of a task's status is the published one; everything else is
the event.

**Once written, at least once delivered.** The sink `webhooks` writes deliveries and its position in one transaction,
under the fence of its lease, and the key of a delivery is its endpoint and its event: whoever goes on after a crash
writes nothing twice. An attempt may be repeated (an answer may be lost), always with the same `webhook-id`. Deliveries
of one endpoint are made several at a time and retried apart: their order is not promised, and each body says when.

**Attempts.** At once, then after 5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h, each a little later by
chance; the moment stands in the row, so it outlives whoever was to keep it. A row that is being sent carries the end
of its lease in the same column: a server that dies leaves it to that moment. A delivery that failed ten times has
failed; it is kept, shown, and sent again when somebody says so.

**Endpoints that end.** 410 disables an endpoint, and so does failing for days on end, or a backlog that grows past
its bound; each with an event `webhook.disabled`. What then still waits has failed with it. Removing an endpoint, and
the end of its zone, do the same.

**Secrets** are derived from the endpoint and a number, never stored (`core.pushkeys`); for a day after a rotation the
one before still signs beside it.

How it fails. While the database is away nothing is sent. An endpoint that is slow or silent holds slots of its own and
of its zone, and nobody else's. An address that must not be called is found out at each attempt, because a name may
change: nobody is connected to, and the attempt has failed. Redirects are answers like any other, and not followed.

| module     | what it has                                                        |
|------------|---------------------------------------------------------------------|
| model      | what is asked for, stored and shown                                  |
| rules      | which events an endpoint hears of, bodies, schedule, endpoints        |
| operations | the verbs, over batches                                              |
| telling    | the sink: from the log into rows                                     |
| delivering | the attempts                                                         |
| sweeps     | what is forgotten                                                    |
"""
