"""A loop in a thread, for code that has none: what the facade in `sync` runs on.

Each client has one. Calls from any number of threads run on it side by side, as they would in one program with a loop
of its own. An interrupt of whoever waits cancels the call it waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import TypeVar

T = TypeVar("T")
JOIN_TIMEOUT_SECONDS = 5.0


class LoopThread:
    """The loop runs from the first call to `finish`. Its thread keeps no program from ending."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._closed = False

    def run(self, coroutine: Coroutine[object, None, T]) -> T:
        """What it returns or raises, once it has."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._ensure_loop())
        except RuntimeError:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            # If it is the caller that was interrupted, nobody waits for the rest. One that is done is not touched.
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items one by one, each waited for when it is asked for."""
        try:
            while True:
                try:
                    yield self.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            self.run(_close_iterator(items))

    def finish(self, coroutine: Coroutine[object, None, None]) -> None:
        """Runs this last, and ends. Does nothing where nothing ever ran, or where it has ended before."""
        if self._loop is None:
            coroutine.close()
        else:
            self.run(coroutine)
        self._close()

    def _close(self) -> None:
        with self._start_lock:
            self._closed = True
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(JOIN_TIMEOUT_SECONDS)
                self._loop = None

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._start_lock:
            if self._closed:
                raise RuntimeError("this client has been closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=[self._loop], name="quarterdeck-sdk", daemon=True
                )
                self._thread.start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _close_iterator(items: AsyncIterator[T]) -> None:
    """An iterator that is left in the middle gives its connection back now, and not when it is collected."""
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
