"""The HTTP server, which serves the routes of all components.

| module          | holds                                                                                      |
|-----------------|--------------------------------------------------------------------------------------------|
| server          | sockets, signals, draining                                                                 |
| connection      | HTTP/1.1 on one connection: parsing, pipelining, time-outs, limits                         |
| request         | one request: reading its body, sending its response at once or as a stream                 |
| dispatcher      | the steps of a request: match, authorize, decode, call, respond, log                       |
| router          | finds the route for a method and path; the cost does not grow with the number of routes    |
| decoding        | decodes bodies and queries; checks size, depth, types and characters                       |
| suggestions     | suggests the closest known name for an unknown field or parameter                          |
| auth            | authentication, and the check of scope and zone                                            |
| stream_limits   | streams: how many may be open, how they are sent, what ends them                           |
| event_stream    | a zone's events as server-sent events                                                      |
| timeline_stream | a fleet's timeline as server-sent events                                                   |
| event_routes    | routes for the event log                                                                   |
| system_routes   | `/health`, `/ready`, `/metrics`, `/about`, `/openapi.json`, `/docs`, JWKS                  |
| redis_routes    | admin routes for the Redis mirror                                                          |
| secret_routes   | admin routes for encryption keys and their rotation                                        |
| sink_routes     | admin routes for sinks                                                                     |
| problem_json    | problems as RFC 9457 bodies and headers                                                    |
| openapi         | the OpenAPI document, generated from the routes                                            |
| docs            | the same document as one HTML page without external resources                              |
| metrics         | values of counters and histograms, and their Prometheus text                               |
| json_logging    | log lines as JSON; request lines are buffered for up to 50 ms                              |

The order of checks: route (404, 400 for an invalid id, 405) → credential (401) → scope and zone (403) → size (413) →
body and query (400) → the operation. A body is read only after its sender is authorized.

Errors. An invalid request gets a 4xx whose text names the field. An exception that a handler does not catch becomes a
500 without details; the log has the traceback. A disconnect does not undo a request: the operation may still be
committed. To find out, the client repeats the request with the same Idempotency-Key. A client whose stream breaks
reconnects to any replica with the last event id that it received.
"""
