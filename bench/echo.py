"""The control of `http_overhead`: a plain ASGI application that reads nothing and always sends the same few bytes.

It runs under uvicorn on the event loop (uvloop) and the parser (httptools) of Quarterdeck's server, so the difference
is the cost of the rest of the HTTP layer.
"""

from __future__ import annotations

import argparse
import gc
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
import uvloop

BODY = b'{"ok":true}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]
Message = MutableMapping[str, Any]


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready_fd: int) -> None:
        super().__init__(config)
        self._ready_fd = ready_fd

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets
        host, port = sockets[0].getsockname()[:2]
        os.write(self._ready_fd, f"ready http://{host}:{port}\n".encode())
        os.close(self._ready_fd)


def main() -> None:
    parser = argparse.ArgumentParser("bench.echo")
    parser.add_argument("--ready-fd", type=int, required=True)
    ready_fd = parser.parse_args().ready_fd
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        echo,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        backlog=1024,
    )
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)
    uvloop.run(Server(config, ready_fd).serve([listener]))


if __name__ == "__main__":
    main()
