"""Coordination: background work on tasks and agents that no client requests.

One process at a time is the coordinator, by a lease with numbered terms (`engine.leader_loop`). It runs a cycle when a
commit wakes it, at least every 30 seconds, and at the next due time that a row stores: the end of a backoff, of an
attempt's timeout, or of an agent's stale threshold. One cycle:

    health ──► assign ──► recover ──► re-rank ──► dependency check
      │          │          │            │             └ at an interval: fails the tasks of dependency cycles
      │          │          │            └ tasks of zones whose strategy was changed
      │          │          └ timed-out and hung attempts, lost launches, blocked dependents, ended backoffs
      │          └ ready tasks to agents that this server starts with a launcher (other agents claim their tasks)
      └ agents without contact become stale, and their attempts are aborted

The coordinator changes no rows itself. It submits commands to the task and agent lanes. Each command checks the row
again under the zone's lock, and commands on tasks are refused if the coordinator's term has ended. So a coordinator
that stalls and loses its lease does no harm when it resumes. Each cycle is bounded: 1,000 agents that become stale at
once take several cycles, with commands for other zones in between.

The process that assigned a task launches it after the commit (`launchers`). Only the server's configuration defines
launchers; no request can define a command, an argument or an environment.

How it fails. While the database is unavailable, the coordinator retries after 5, 10, 20 and then every 40 seconds,
reports itself as unhealthy, logs an alarm after five minutes, and recovers on its own. A failed launch is a failed
attempt. If the coordinator dies between an assignment and its launch, the task stays ASSIGNED until the launch
deadline; then the next coordinator aborts the attempt. A process that outlives its attempt is killed; if its server was
killed, its token is refused. All due times are stored in rows, so without a coordinator work is late but not lost.
"""
