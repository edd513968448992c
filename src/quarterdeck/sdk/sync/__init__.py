"""The blocking client, for code without an event loop.

    with Quarterdeck.connect() as qd:
        planner = qd.sessions.spawn("planner")

Each class wraps the asynchronous class of the same name, and each method blocks until that class's method has returned.
Calls from any number of threads run concurrently, on one event loop in a thread of the client. An interrupt cancels the
call. Both clients raise the same exceptions. `make sdk` generates the modules, each from the module of the same name in
`quarterdeck.sdk`.
"""

from quarterdeck.sdk.sync.client import Quarterdeck

__all__ = ["Quarterdeck"]
