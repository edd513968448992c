"""Code that the CLI and the SDK share: a small HTTP client, and discovery of the server to use.

| module       | what it does                                                                        |
|--------------|-------------------------------------------------------------------------------------|
| http_types   | requests, responses, addresses and errors for both HTTP clients                     |
| http_sync    | blocking HTTP/1.1 over a unix socket, TCP or TLS                                    |
| http_parser  | incremental response parser without I/O, for both HTTP clients                      |
| http_async   | one HTTP connection on an event loop                                                |
| pool         | connection pool on an event loop                                                    |
| problems     | converts between error responses and the classes of `core.errors`                   |
| api          | authenticated JSON calls, and iteration over paged lists                            |
| event_stream | follows the event stream and reconnects                                             |
| data_dir     | files in a data directory: server record, token, locks, log                         |
| file_locks   | checks and acquires flocks                                                          |
| autostart    | starts a data directory's server if none is running; concurrent callers start one   |
| discovery    | finds the server from flags and environment, for the CLI and for the SDK            |

Agents run `qd` often, so the modules that the CLI uses have a short import time. They do not import `pathlib` or
`dataclasses`, and they import `ssl` and `urllib` only when a URL needs them. A cold `qd session show` imports `json`,
`socket` and little else. Only the SDK imports `http_async` and `pool`: they import `asyncio`.

Errors. A failed call or start raises a `core.errors.Problem`. Its class says whether a retry is safe. `Unreachable`:
nothing was sent, so a retry is safe. `Lost`: the request was sent and no complete response came, so the server may have
processed it, and only a request with an idempotency key is safe to repeat. `TimedOut`: the same as `Lost`, except that
the codes `connect_timeout`, `start_timeout` and `server_silent` mean that nothing was sent. This package only retries
in two cases: `event_stream` reconnects, and the pool, if the caller allows it, repeats an exchange that was lost
on an idle connection.

Server selection. If a URL is given, the server at that URL is used, and no server is started. Otherwise the data
directory's server is used. `server.json` in the directory names the server's socket. The flock on `server.lock` shows
whether the server is running; the pid in `server.json` does not, because a different process may have that pid by now.
If no server is running, one is started, unless `server.json` says that the database is PostgreSQL: the operator starts
such a server.
"""
