"""For the tests of programs that use Quarterdeck: a real server in the test's own process, and time that is told.

    async with testing.server() as qd:
        task = await qd.tasks.create("summarise", "research", retry_backoff_seconds=60)
        await qd.drain(worker)                  # its function raises
        qd.clock.advance(minutes=2)
        await qd.drain(worker)                  # and is called again

| module | what it decides                                                                                |
|--------|------------------------------------------------------------------------------------------------|
| clock  | what time it is                                                                                |
| serving | a server on a fresh database, by that clock; what is due, done now                             |
| blank  | a database that is ready, without migrating one for each test                                   |

There is no imitation of anything: the rooms, their statements and their rules are those of a server, on a SQLite file
of its own. What differs is time. The database's clock stands still unless it is moved, and nothing happens by itself:
no sweep runs and the coordinator takes no turn before `settle` is called, which does everything that is due by then
and returns when nothing is left. So no test of backoffs, time-outs, stale agents or expiring sessions waits for
anything.

How it fails. What never comes to rest (two things that cause each other) is a RuntimeError of `settle`, and not a test
that hangs. What goes by the process's own time is not moved: how long a claim waits for work, and the expiry of tokens.
"""

from quarterdeck.testing.clock import Clock
from quarterdeck.testing.server import Server, server

__all__ = ["Clock", "Server", "server"]
