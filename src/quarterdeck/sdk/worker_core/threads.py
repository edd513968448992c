"""Thread pool for handlers that are plain functions.

Python's own pool joins its threads at the end of the program, so a function that never returns would keep the worker
running past its grace period and every signal. The threads here are daemon threads: work that does not end was
given back, and another worker does it again. Threads are reused between calls, because user code may keep connections
in them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

WorkItem = tuple[Future[object], Callable[[], object]]


class DaemonThreadPool:
    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._started = 0
        self._idle = threading.Semaphore(0)
        self._queue: SimpleQueue[WorkItem | None] = SimpleQueue()

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Run a function in a thread and return its result. If the caller is cancelled, the function keeps running."""
        future: Future[object] = Future()
        self._queue.put((future, partial(function, *arguments)))
        if not self._idle.acquire(blocking=False) and self._started < self._max_threads:
            self._started += 1
            name = f"quarterdeck-worker-{self._started}"
            threading.Thread(target=self._run_thread, name=name, daemon=True).start()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End idle threads now, and the others after their current call."""
        for _ in range(self._started):
            self._queue.put(None)

    def _run_thread(self) -> None:
        while item := self._queue.get():
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # every error belongs to the waiting caller
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # Drop references to the call while the thread waits for the next one.
            del item, future, work
            self._idle.release()
