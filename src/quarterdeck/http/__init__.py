"""HTTP: one shell that serves the route tables of all rooms, and the server it stands in.

| module   | what it decides                                                                             |
|----------|---------------------------------------------------------------------------------------------|
| router   | which route a method and a path mean: by segment, at a cost that does not grow with the table |
| intake   | whether a body, a query and a header may come in: sizes, depth, types, characters             |
| meant    | what a name that nobody knows may have been meant for                                       |
| auth     | who is asking, and whether they may                                                          |
| shell    | the order of all that for one request, its log line and its figures                            |
| streams  | answers without an end: how many, how they are sent, what ends them                           |
| sse      | a zone's events as they are committed: where a stream begins, and what it says                 |
| entries  | a fleet's timeline as it grows, entry by entry                                                 |
| problems | how a refusal or a fault looks outside: RFC 9457                                             |
| openapi  | the description of the table; `docs` renders it for people, without a network                  |
| metrics  | what is counted, and `/metrics`                                                               |
| logs     | one JSON object a line; those of requests are gathered for a moment                             |
| request  | one request and the way back: its body as it comes, its answer at once or piece by piece         |
| waiting  | answers that take their time, while their client is there                                       |
| connection | a peer's bytes as requests, in order; what it may do before it has said anything               |
| serve    | sockets, signals and draining                                                                 |

The order for each request: route (404; 400 for what is no id; 405) → credential (401) → scope and zone (403) → size
(413) → body and query (400) → the operation → the answer. Nothing is read of a body before its sender is known to be
allowed to send it.

How it fails. Whatever a request contains, the answer is a 4xx with a sentence that names the field; what escapes a
handler is a 500 without a trace of its insides, and the whole of it in the log. A client that goes away does not undo
what it asked for: the operation is committed or not, and an Idempotency-Key tells which. A stream that is cut is opened
again, here or elsewhere, from the last id its client saw.
"""
