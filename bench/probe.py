"""A Quarterdeck server with one more route: authenticated, in a zone, with a constant response.

Otherwise it equals `python -m quarterdeck up`: all routes are mounted, log and metrics are on. So the cost of the route
is the cost of the HTTP layer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from unittest import mock

import msgspec

from quarterdeck import __main__, app
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import AnyCall, Route
from quarterdeck.http.auth import Authenticator
from quarterdeck.http.dispatcher import Dispatcher
from quarterdeck.http.json_logging import LineWriter
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.stream_limits import OpenStreams

PATH = "/zones/{zone}/probe"


class ProbeResponse(msgspec.Struct, frozen=True):
    ok: bool = True


PROBE_RESPONSE = ProbeResponse()


async def probe(call: AnyCall) -> ProbeResponse:
    return PROBE_RESPONSE


class ProbedDispatcher(Dispatcher):
    def __init__(
        self,
        routes: Sequence[Route],
        authenticator: Authenticator,
        metrics: Metrics,
        request_log: LineWriter | None,
        streams: OpenStreams,
    ) -> None:
        probe_route = Route("GET", PATH, probe, "Return a constant response", LIFECYCLE)
        super().__init__([*routes, probe_route], authenticator, metrics, request_log, streams)


def main() -> int:
    with mock.patch.object(app, "Dispatcher", ProbedDispatcher):
        return __main__.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
