"""Coordination: what nobody asks for, and must happen all the same.

One process at a time is the coordinator, by a lease with numbered terms (`engine.duties`). It is woken by commits,
looks every half minute by itself, and otherwise rests until the next moment that stands in a row: the end of a backoff,
of an attempt's time, of an agent's silence. One turn of it:

    health ──► assign ──► dependencies ──► recover
      │          │             │              └ attempts whose time is over, that hang, whose launch was lost; backoffs
      │          │             │                that have ended
      │          │             └ failures that some have not heard of yet; tasks that wait for each other
      │          └ tasks to agents that this server starts by a launcher (others ask for work themselves)
      └ agents that were not heard of: those that are stale, and what they held goes back

It decides nothing that the rooms below do not decide again: what it has seen becomes commands of the tasks' and the
agents' lanes, each of which looks at the row under the zone's lock, and none of which counts unless the coordinator's
term is not over. A coordinator that was frozen for a minute wakes, and is refused. Each pass is bounded: a thousand
agents that fall silent at once are worked off in several turns, and other zones' commands stand between them.

What is assigned is launched after the commit, by whoever assigned it (`launching`). Only what the server's own
configuration names can be launched; no request can define a command, an argument or an environment.

How it fails. While the database is away it tries again after 5, 10, 20 and 40 seconds, says that it is unhealthy, and
raises an alert after five minutes; it goes on by itself. A launch that fails is a failed attempt. A coordinator that
dies between an assignment and its launch leaves a task that is ASSIGNED; when the time for launching is over, that
attempt is aborted by its successor. A process that outlives its attempt is ended; one whose server was killed finds its
token refused. Everything it acts on stands in rows: what nobody coordinates is late, and not lost.
"""
