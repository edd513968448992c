"""Threads for the methods that are plain functions.

The library's own pool joins its threads when the program ends, so that one function which never returns would keep its
worker alive past its grace and past every signal. These are left behind: what ran in them was given back, and another
worker does it again. They are kept from one call to the next, as people keep connections in them.
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
        """What it returns or raises. Whoever is cancelled does not wait for it, and it runs on."""
        future: Future[object] = Future()
        self._queue.put((future, partial(function, *arguments)))
        if not self._idle.acquire(blocking=False) and self._started < self._max_threads:
            self._started += 1
            name = f"quarterdeck-worker-{self._started}"
            threading.Thread(target=self._run_thread, name=name, daemon=True).start()
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Those that have nothing to do end now, and the others after what they do."""
        for _ in range(self._started):
            self._queue.put(None)

    def _run_thread(self) -> None:
        while item := self._queue.get():
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as error:  # whatever it is, somebody waits for it, and it is theirs
                    future.set_exception(error)
                else:
                    future.set_result(result)
            # Nothing of a call outlives it here, while the thread waits for the next.
            del item, future, work
            self._idle.release()
