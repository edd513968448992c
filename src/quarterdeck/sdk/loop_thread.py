"""Wraps asynchronous objects for the blocking client in `sdk/sync`.

Each client has one event loop thread. Calls from any number of threads run on it concurrently. Interrupting a waiting
thread cancels its call.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TypeVar

T = TypeVar("T")
JOIN_TIMEOUT_SECONDS = 5.0


class Blocking:
    """Base class of the blocking classes. `blocking_class` adds the methods."""

    def __init__(self, inner: object, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread


def blocking_class(async_class: type) -> type[Blocking]:
    """A class with the same public methods. Each blocks until the method of the asynchronous class has returned."""
    public = {name: method for name, method in vars(async_class).items() if not name.startswith("_")}
    methods = {name: _blocking_method(name, method) for name, method in public.items() if callable(method)}
    return type(async_class.__name__, (Blocking,), {"__doc__": async_class.__doc__, **methods})


def _blocking_method(name: str, method: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(method)
    def call(self: Blocking, *arguments: object, **options: object) -> object:
        result: object = getattr(self._inner, name)(*arguments, **options)
        if isinstance(result, Coroutine):
            return self._loop_thread.run(result)
        return self._loop_thread.iterate(result) if isinstance(result, AsyncIterator) else result

    return call


class LoopThread:
    """The loop runs in a daemon thread, from the first call until `finish`."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._is_closed = False

    def run(self, coroutine: Coroutine[object, None, T]) -> T:
        """Run a coroutine on the loop and return its result."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._ensure_loop())
        except RuntimeError:
            coroutine.close()
            raise
        try:
            return future.result()
        except BaseException:
            # If the caller was interrupted, nothing is waiting for the coroutine. No effect if the coroutine is done.
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items, fetching each one on demand."""
        try:
            while True:
                try:
                    yield self.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            self.run(_close_iterator(items))

    def finish(self, coroutine: Coroutine[object, None, None]) -> None:
        """Run a final coroutine and stop the loop. If the loop is not running, only close the coroutine."""
        if self._loop is None:
            coroutine.close()
        else:
            self.run(coroutine)
        self._close()

    def _close(self) -> None:
        with self._start_lock:
            self._is_closed = True
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join(JOIN_TIMEOUT_SECONDS)
                self._loop = None

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._start_lock:
            if self._is_closed:
                raise RuntimeError("this client is closed")
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
    other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in other_tasks:
        task.cancel()
    await asyncio.gather(*other_tasks, return_exceptions=True)


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)


async def _close_iterator(items: AsyncIterator[T]) -> None:
    """Close an iterator so that it frees its connection now, not when it is garbage-collected."""
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
