"""Thread pool for plain functions.

Python's own pool joins its threads at the end of the program, so a function that never returns would keep the program
running after the grace period and after every signal. The threads here are daemon threads. Work that they do not finish
is not lost: the worker gives it back, and another worker repeats it. Threads are reused between calls, because user
code may keep connections in thread-local storage.
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
        self._thread_count = 0
        self._idle_threads = threading.Semaphore(0)
        self._queue: SimpleQueue[WorkItem | None] = SimpleQueue()

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """Run a function in a thread and return its result. If the caller is cancelled, the function keeps running."""
        future: Future[object] = Future()
        self._queue.put((future, partial(function, *arguments)))
        if not self._idle_threads.acquire(blocking=False) and self._thread_count < self._max_threads:
            self._thread_count += 1
            name = f"quarterdeck-worker-{self._thread_count}"
            threading.Thread(target=self._run_thread, name=name, daemon=True).start()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End idle threads now, and the others after their current call."""
        for _ in range(self._thread_count):
            self._queue.put(None)

    def _run_thread(self) -> None:
        while item := self._queue.get():
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # the waiting caller gets every error
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # Drop references to the call while the thread waits for the next one.
            del item, future, work
            self._idle_threads.release()
