"""Answers that take their time: a client that goes away meanwhile must not be waited for.

Nothing else is asked on the connection while its request is being answered, so the one thing that can come is the
client's farewell. It ends the handler; and a handler that was done already, in that very moment, is told that its
answer reached nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from quarterdeck.core.wire import Reply
from quarterdeck.http.request import Gone, Request


async def while_there(answering: Awaitable[object], request: Request) -> object:
    work = asyncio.ensure_future(answering)
    farewell = asyncio.ensure_future(request.until_gone())
    try:
        await asyncio.wait({work, farewell}, return_when=asyncio.FIRST_COMPLETED)
        if not farewell.done():
            return work.result()
        if work.done() and not work.cancelled() and work.exception() is None:
            answer = work.result()
            if isinstance(answer, Reply) and answer.unsent:
                answer.unsent()
        raise Gone
    finally:
        for task in (work, farewell):
            if not task.done():
                task.cancel()
