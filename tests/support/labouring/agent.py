"""One agent as a program of its own: `python -m tests.support.labouring.agent JSON`, where the JSON is a `Post`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import msgspec

from tests.support.labouring.ledger import Ledger

READY = "ready"


class Post(msgspec.Struct, frozen=True):
    """Who it is, and where it works."""

    kind: str
    """`sdk` or `plain`."""
    agent: str
    client: str
    """This process: an agent that is started anew is another client."""
    urls: list[str]
    token: str
    zone: str
    history: str
    seed: str
    interval_seconds: int = 1
    threshold_seconds: int = 3


def main(told: str) -> None:
    post = msgspec.json.decode(told, type=Post)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    ledger = Ledger(Path(post.history), post.client, post.zone)
    # Each kind imports only what it needs: twenty of them begin at once.
    if post.kind == "sdk":
        from tests.support.labouring.worker import work

        asyncio.run(work(post, ledger))
    else:
        from tests.support.labouring.plain import Plain

        asyncio.run(Plain(post, ledger).work())


if __name__ == "__main__":
    main(sys.argv[1])
