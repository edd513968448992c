"""Answers that take their time: a client that goes away meanwhile must not be waited for.

Nothing else is asked on the connection while its request is being answered, so the one thing that can come is the
client's farewell. It cancels the handler where it waits. (A handler that was done already, in that very moment, has its
answer refused by the request, which tells whoever gave it.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from quarterdeck.http.request import Gone, Request


async def while_there(answering: Awaitable[object], request: Request) -> object:
    task = asyncio.current_task()
    assert task is not None
    request.on_farewell(task.cancel)
    try:
        return await answering
    except asyncio.CancelledError:
        if not request.is_gone:
            raise
        task.uncancel()
        raise Gone from None
    finally:
        request.on_farewell(None)
