"""The client for code without a loop.

    with Quarterdeck.connect() as qd:
        planner = qd.sessions.spawn("planner")

Every class here stands for the one of the same name that has a loop, and every method waits for its own. Calls of any
number of threads run side by side, on one loop in a thread that belongs to the client; an interrupt cancels the call
that was waited for. The modules are written by `make sdk`, each from the one of the same name above: nothing here is
decided by hand, and it fails as that does.
"""

from quarterdeck.sdk.sync.client import Quarterdeck

__all__ = ["Quarterdeck"]
