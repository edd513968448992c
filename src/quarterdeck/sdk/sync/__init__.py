"""The blocking client, for code without an event loop.

    with Quarterdeck.connect() as qd:
        planner = qd.sessions.spawn("planner")

Each class wraps the asynchronous class of the same name, and each method blocks until that class's method has returned.
Calls from any number of threads run concurrently, on one event loop in a thread of the client. An interrupt cancels the
call. Both clients raise the same exceptions. `make sdk` generates the types (`__init__.pyi`) from the asynchronous
classes.
"""

from __future__ import annotations

import functools
from types import TracebackType
from typing import Self, get_type_hints

from quarterdeck.sdk import client
from quarterdeck.sdk.loop_thread import LoopThread, blocking_class

_RESOURCE_CLASSES = {name: blocking_class(kind) for name, kind in get_type_hints(client.Quarterdeck).items()}
# Programs can import the classes by name, to use them in annotations.
globals().update({resource_class.__name__: resource_class for resource_class in _RESOURCE_CLASSES.values()})


class Quarterdeck:
    __doc__ = client.Quarterdeck.__doc__

    def __init__(self, inner: client.Quarterdeck, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread
        for name, resource_class in _RESOURCE_CLASSES.items():
            setattr(self, name, resource_class(getattr(inner, name), loop_thread))

    @classmethod
    @functools.wraps(client.Quarterdeck.connect)
    def connect(cls, *arguments: object, **options: object) -> Quarterdeck:
        return cls(client.Quarterdeck.connect(*arguments, **options), LoopThread())

    @property
    def zone(self) -> str:
        return self._inner.zone

    def in_zone(self, zone: str) -> Quarterdeck:
        """Create a client for another zone. It shares the connections of this client."""
        return Quarterdeck(self._inner.in_zone(zone), self._loop_thread)

    def close(self) -> None:
        self._loop_thread.finish(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
