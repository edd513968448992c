"""Pure rules and value types, without I/O: functions take the time and random numbers as arguments. There are two
exceptions: `clock.system_now` reads the clock, and `ids.new_id` reads the clock and random bytes.

All other packages may import from `core`; `core` imports from none of them.

| module          | holds                                                                               |
|-----------------|-------------------------------------------------------------------------------------|
| api_key         | the text format of API keys                                                         |
| audit_seal      | signed seals over ranges of the event log, and which events retention may delete    |
| audit_verify    | verification of an event log against its seals; names the first altered row         |
| caller          | the authenticated sender of a request, roles and scopes                             |
| clock           | times as integer milliseconds, and their ISO-8601 form                              |
| command         | the base struct of the commands that lanes run                                      |
| errors          | the types of refusals and faults, each with an HTTP status and a CLI exit code      |
| fair_slots      | limits on concurrent outbound calls: in total, per zone and per target              |
| idempotency     | idempotency keys: what a key identifies, and when two requests are equal            |
| ids             | UUIDv7 text ids, ordered by time, generated before the statement that stores them   |
| log_event       | the fields of an event, for packages that render events                             |
| metric_table    | every metric: name, type, help text, labels and buckets                             |
| paging          | opaque cursors that stay valid when their row is deleted                            |
| ping_policy     | which fleet members a monitor pings, and when a monitor is stale                    |
| redaction       | which parts of JSON values and free text are secret, and how they are masked        |
| retry           | backoff and the time of the next attempt                                            |
| routing         | `Route`, `Call` and `Reply`, with which components declare their HTTP routes        |
| ssrf            | which hosts and addresses the server may call on behalf of a client                 |
| state_machine   | state machines as tables of transitions                                             |
| trace_context   | W3C `traceparent` headers                                                           |
| views           | functions that build a view from a row                                              |
| webhook_signing | signature headers of outgoing requests, and the secrets that sign them              |

Functions refuse bad requests by returning or raising a `Problem` (`errors`). The tests are in `tests/rules/` and need
no database.
"""
