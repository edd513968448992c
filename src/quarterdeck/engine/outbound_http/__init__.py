"""Calls to the outside: one HTTP exchange with a URL, within bounds, and never to where it must not go.

Whoever names a URL makes this process connect somewhere, and this process stands inside a network that callers may not
reach. So a call goes like this, and in no other order:

    URL ─► its host, as it is spelt ─► every address of it ─► a connection to one of those ─► the exchange ─► answer
                  Refused                    Refused               Unreachable            TimedOut, Overlong, Garbled

- The name is resolved once, here. What is connected to is an address that was judged, not the name: a name that gives
  another address the second time (rebinding) is never asked a second time. If one of a name's addresses is refused, all
  are: a public name has no business in a private network.
- TLS is spoken with the name of the URL, which the certificate must hold for, whatever the address.
- Redirects are answers like any other, and nothing is followed. No proxy of the environment is used.
- One time limit holds for the whole, from the first question to the resolver to the last byte of the answer: a server
  that sends one byte a second is given up like one that sends none.
- An answer has a bound for its head and one for its body; beyond them nothing more is read.

| module  | what it decides                                                            |
|---------|-----------------------------------------------------------------------------|
| model   | what is asked, what comes back, and the ways in which nothing does            |
| finding | the addresses of a name, and which of them may be called                      |
| talking | the exchange itself                                                          |

Each exchange has a connection of its own. Kept connections would save round trips to endpoints that are called often,
and would make every call a guess at whether the other side has just closed; what is sent here may act, and is not sent
twice for a guess.

How it fails: always by an `OutwardError`, which quotes nothing of the answer. `Refused` means that nobody was connected
to. After any other nobody knows what the other side has done.
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
