"""For tests of programs that use Quarterdeck: a real server in the test process, on a clock that the test advances.

    async with testing.server() as qd:
        task = await qd.tasks.create("summarise", "research", retry_backoff_seconds=60)
        await qd.drain(worker)                  # its function raises
        qd.clock.advance(minutes=2)
        await qd.drain(worker)                  # and is called again

| module   | what it does                                                                               |
|----------|--------------------------------------------------------------------------------------------|
| clock    | the clock that the test advances                                                           |
| server   | a server on a fresh database and that clock; `settle` runs all due work                    |
| database | an empty database, migrated once per process and copied for each test                      |

Nothing is mocked: components, SQL statements and rules are those of a real server, on a separate SQLite file. Only time
differs. The database's clock moves only when the test advances it. No sweep or coordinator cycle runs by itself:
`settle` does everything that is due and returns when nothing is left. So tests of backoffs, timeouts, stale agents or
expiring sessions do not wait.

How it fails. If work causes new work without end, `settle` raises RuntimeError instead of hanging. Two things use real
time, so the test's clock does not affect them: how long a claim waits for work, and the expiry of tokens.
"""

from quarterdeck.testing.server import Clock, Server, server

__all__ = ["Clock", "Server", "server"]
