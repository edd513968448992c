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
| autostart    | starts the server of a data directory if none runs; concurrent callers start one    |
| discovery    | finds the server from flags and environment, for the CLI and for the SDK            |

Agents run `qd` often, so the modules that the CLI uses have a short import time. They do not import `pathlib` or
`dataclasses`, and they import `ssl` and `urllib` only when a URL needs them. A cold `qd session show` imports `json`,
`socket` and little else. Only the SDK imports `http_async`, `http_parser` and `pool`: they import `asyncio`.

Errors. A failed call or start raises a `core.errors.Problem`. Its class says whether a retry is safe. `Unreachable`:
nothing was sent, so a retry is safe. `Lost`: the request was sent and no complete response came, so the server may have
processed it, and only a request with an idempotency key is safe to repeat. `TimedOut`: the same as `Lost`, except for
the codes `connect_timeout`, `start_timeout` and `server_silent`, with which nothing was sent. This package retries
nothing by itself, with two exceptions: `event_stream` reconnects, and the pool repeats an exchange that was lost on an
idle connection, if the caller allows it.

Which server. If a URL is given, the server at that URL is used, and none is started. Otherwise the server of the data
directory is used. `server.json` in the directory names the server's socket. The flock on `server.lock` shows whether
the server runs; the pid in `server.json` does not, because another process may have that pid by now. If no server
runs, one is started, unless `server.json` names a PostgreSQL database: the operator starts such a server.
"""
