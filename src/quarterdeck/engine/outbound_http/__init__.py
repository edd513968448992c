"""Outbound HTTP calls: one request to a URL, with limits and SSRF checks.

A client that names a URL makes this process connect to it, and this process may run in a network that its clients
cannot reach. So every call takes these steps, in this order:

    URL ─► check the host's spelling ─► resolve and check all addresses ─► connect to one ─► send request, read response
           RequestBlocked               RequestBlocked                     Unreachable       TimedOut, ResponseTooLarge,
                                                                                             InvalidResponse

- The name is resolved once, here. The connection goes to a checked address, not to the name: a name that resolves to
  another address the second time (DNS rebinding) is never resolved a second time. If one address of a name is blocked,
  the call is blocked: a public name must not point into a private network.
- TLS verifies the certificate against the host name in the URL, whatever the address.
- Redirects are returned like any response and never followed. Proxy settings in the environment are ignored.
- One time limit covers the complete call, from name resolution to the last byte of the response: a server that sends
  one byte a second times out like one that sends none.
- Response headers and body have separate size limits. Nothing is read beyond them.

| module     | holds                                                                     |
|------------|---------------------------------------------------------------------------|
| client     | the call itself                                                           |
| ssrf_guard | resolution of names, and which addresses may be called                    |
| types      | request, response, limits and errors                                      |

Each call has its own connection. Connection reuse would save round trips to endpoints that are called often, but each
call would have to guess whether the peer has just closed the connection. A request may have side effects and must not
be sent twice because of a wrong guess.

How it fails. Every failure raises an `OutboundError`, which quotes nothing from the response. If `RequestBlocked` is
raised, no connection was opened. After any other error it is unknown what the peer has done.
"""

from quarterdeck.engine.outbound_http.client import OutboundClient
from quarterdeck.engine.outbound_http.ssrf_guard import (
    ALLOW_ALL,
    ALLOW_PRIVATE,
    PUBLIC_ONLY,
    Resolve,
    Resolver,
    SsrfGuard,
)
from quarterdeck.engine.outbound_http.types import (
    InvalidResponse,
    OutboundError,
    Request,
    RequestBlocked,
    Response,
    ResponseLimits,
    ResponseTooLarge,
    TimedOut,
    Unreachable,
)

__all__ = [
    "ALLOW_ALL",
    "ALLOW_PRIVATE",
    "PUBLIC_ONLY",
    "InvalidResponse",
    "OutboundClient",
    "OutboundError",
    "Request",
    "RequestBlocked",
    "Resolve",
    "Resolver",
    "Response",
    "ResponseLimits",
    "ResponseTooLarge",
    "SsrfGuard",
    "TimedOut",
    "Unreachable",
]
