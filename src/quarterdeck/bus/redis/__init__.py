"""The Redis adapter: writes streams, task and agent keys, and slot counters.

| module         | holds                                                                                        |
|----------------|----------------------------------------------------------------------------------------------|
| client         | connections, and the fence and markers of the scripts                                        |
| interfaces     | the protocols that the engine calls, and `BusUnavailable`, the error for an unreachable Redis |
| key_layout     | names and values of the keys and channels for tasks and agents                               |
| key_writer     | writes these keys                                                                            |
| slots          | writes the slot counters of zones                                                            |
| stream_entries | which stream entries an event becomes, with their fields and signature                       |
| streams_writer | writes these entries, each once                                                              |

Redis is never read to decide anything. With Redis down, wiped or wrong, every request gets the same response; the
streams and keys catch up from the event log.

Errors: a Redis that cannot be reached, does not respond in time, or reports its own state (loading, read-only, out of
memory) raises `BusUnavailable`, and the sink retries from the same position. An entry that Redis rejects for its
content is returned to the sink, which sets it aside and continues.
"""
