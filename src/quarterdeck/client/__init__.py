"""What the CLI and the SDK share: a small HTTP client, and the way to the server of a data directory.

| module    | what it decides                                                                        |
|-----------|----------------------------------------------------------------------------------------|
| http      | one HTTP/1.1 exchange over a unix socket, TCP or TLS: framing, bounds, deadlines        |
| problems  | which kind of `core.errors` an answer is, so that a refusal looks the same near and far |
| server    | a server one can call: address, token, JSON in and out, pages                           |
| stream    | a server's events, over whatever cuts the connection                                   |
| place     | what lies in a data directory: the record, the token, the locks, the log                |
| locks     | questions to an flock: is it held, wait until it is free                                |
| process   | which process listens at the other end of a socket                                      |
| start     | starting a server where none runs, once, however many ask                               |
| find      | from flags and environment to a server that answers                                     |
| locate    | the same for those who stay connected, and may have to look again                      |
| framing   | answers out of bytes that come in any pieces                                           |
| wires     | one connection on an event loop                                                        |
| pool      | connections to one server, kept while both sides keep them                             |

Agents run `qd` all day, so this package is written for its import time: no `http.client`, no `ssl` and no
`urllib` until a URL asks for them, no `pathlib`, no `dataclasses`. A cold `qd session show` imports `json`
and `socket` and little else. What needs an event loop (from `locate` on) is the SDK's, and no command loads it.

How it fails. Everything raised here is a `core.errors.Problem`. Three kinds are its own: `Unreachable`
(nothing was sent: safe to ask again), `Lost` (the request went out and no answer came: the server may have
done it, so only a request with an idempotency key is safe to repeat) and `TimedOut` (the same, by the
clock). Nothing is retried here behind the caller's back.

Which server. An address that is given is used and never started. Otherwise the data directory decides: its
record names the socket, and the flock on `server.lock` — not the pid in the record, which another process
may bear by now — says whether a server runs. Where none runs one is started, unless the record says that
the directory's database is PostgreSQL: such a server is somebody's to run.
"""
