"""The Redis adapter: writes streams, task and agent keys, and slot counters.

| module         | what it holds                                                                              |
|----------------|--------------------------------------------------------------------------------------------|
| interfaces     | the protocols that the engine calls, and `Away`, the error for an unreachable Redis          |
| stream_entries | which stream entries an event becomes, with their fields and signature                       |
| client         | connections, the stream writer and the slot counters                                         |
| key_layout     | names and values of the keys and channels for tasks and agents                               |
| key_writer     | writes these keys                                                                            |

Redis is never read to decide anything. With Redis down, wiped or wrong, every request is answered as before; the
streams and keys catch up from the event log.

Errors: a Redis that cannot be reached, does not answer in time, or reports its own state (loading, read-only, out of
memory) raises `Away`, and the sink retries from the same position. An entry that Redis rejects for its content is
returned to the sink, which sets it aside and continues.
"""
