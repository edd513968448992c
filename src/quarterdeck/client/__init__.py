"""What the CLI and the SDK share: a small HTTP client, and the search for the server of a data directory.

| module       | what it does                                                                        |
|--------------|-------------------------------------------------------------------------------------|
| http_types   | requests, responses, addresses and errors of both HTTP clients                      |
| http_sync    | blocking HTTP/1.1 over a unix socket, TCP or TLS                                    |
| http_parser  | incremental response parser without I/O                                             |
| http_async   | one HTTP connection on an event loop                                                |
| pool         | connection pool on an event loop                                                    |
| problems     | converts error responses to the classes of `core.errors`                            |
| api          | authenticated JSON calls, and pages of lists                                        |
| event_stream | follows the event stream and reconnects                                             |
| data_dir     | files of a data directory: server record, token, locks, log                         |
| file_locks   | checks and takes flocks                                                             |
| socket_peer  | pid and uid of the process that listens on a socket                                 |
| autostart    | starts a server if none runs, once for any number of callers                        |
| discovery    | finds the server from flags and environment, for the CLI and for the SDK            |

Agents run `qd` all day, so this package is written for a short import time. It does not import `pathlib` or
`dataclasses`, and it imports `ssl` and `urllib` only when a URL needs them. A cold `qd session show` imports `json`,
`socket` and little else. Only the SDK imports `http_async`, `http_parser` and `pool`: they need an event loop.

How it fails. A failed call or start raises a `core.errors.Problem`. Its class says whether a retry is safe.
`Unreachable`: nothing was sent, so it is. `Lost`: the request was sent and no complete response came, so the server may
have processed it, and only a request with an idempotency key is safe to repeat. `TimedOut`: as `Lost`, except that with
the code `connect_timeout` nothing was sent. This package retries nothing by itself, with two exceptions: `event_stream`
reconnects, and the pool repeats an exchange that was lost on an idle connection, if the caller allows it.

Which server. A server at a given URL is used and never started. Otherwise the data directory decides. Its record
names the socket. The flock on `server.lock` shows whether a server runs; the pid in the record does not, because
another process may have it by now. If no server runs, one is started, unless the record names a PostgreSQL database:
such a server is started by its operator.
"""
