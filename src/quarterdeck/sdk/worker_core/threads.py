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

Work = tuple[Future[object], Callable[[], object]]


class Threads:
    def __init__(self, most: int) -> None:
        self._most = most
        self._made = 0
        self._idle = threading.Semaphore(0)
        self._asked: SimpleQueue[Work | None] = SimpleQueue()

    async def call(self, function: Callable[..., object], *arguments: object) -> object:
        """What it returns or raises. Whoever is cancelled does not wait for it, and it runs on."""
        done: Future[object] = Future()
        self._asked.put((done, partial(function, *arguments)))
        if not self._idle.acquire(blocking=False) and self._made < self._most:
            self._made += 1
            name = f"quarterdeck-worker-{self._made}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        return await asyncio.wrap_future(done)

    def close(self) -> None:
        """Those that have nothing to do end now, and the others after what they do."""
        for _ in range(self._made):
            self._asked.put(None)

    def _serve(self) -> None:
        while asked := self._asked.get():
            done, work = asked
            if done.set_running_or_notify_cancel():
                try:
                    result = work()
                except BaseException as wrong:  # whatever it is, somebody waits for it, and it is theirs
                    done.set_exception(wrong)
                else:
                    done.set_result(result)
            # Nothing of a call outlives it here, while the thread waits for the next.
            del asked, done, work
            self._idle.release()
