"""The Redis adapter: writes streams, task and agent keys, and slot counters.

| module         | holds                                                                                        |
|----------------|----------------------------------------------------------------------------------------------|
| client         | connections, and the fence and the markers that the scripts use                              |
| interfaces     | the protocols that the engine calls, and `BusUnavailable`, the error for an unreachable Redis |
| key_layout     | names and values of the keys and channels for tasks and agents                               |
| key_writer     | writes those keys                                                                            |
| slots          | writes the slot counters of zones                                                            |
| stream_entries | which stream entries an event becomes, with their fields and signature                       |
| streams_writer | writes those entries exactly once                                                            |

The server makes no decision from the content of Redis. Every request gets the same response even if Redis is down,
wiped or holds wrong values; the streams and keys catch up from the event log.

Errors: calls raise `BusUnavailable` if Redis cannot be reached, does not respond in time, or is loading, read-only or
out of memory. The sink then retries from the same position. An entry that Redis rejects because of its content is
returned to the sink, which sets it aside and continues.
"""
