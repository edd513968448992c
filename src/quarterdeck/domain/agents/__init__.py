"""Agents, which are registered workers.

An agent has capabilities, a limit on concurrent tasks, and a heartbeat interval. This component decides which agents
exist and what status each has.

| status     | when                                                                                          |
|------------|-----------------------------------------------------------------------------------------------|
| IDLE       | it is active and holds no task                                                                |
| WORKING    | it is active and holds tasks; computed, not stored                                            |
| DEGRADED   | it reports itself as degraded: it may claim tasks, but nothing is launched for it             |
| ERROR      | it has not been seen for `staleThresholdSeconds` (reason `stale`): it gets no tasks until it  |
|            | is seen again. In the same transaction, `domain.tasks` aborts its attempts (on `agent.stale`) |
| TERMINATED | it was terminated, at once or, if `graceful`, after its last task                             |

**Seen.** An agent is seen, and `last_seen_at` is set, when it registers, sends a heartbeat, waits in a claim, or
reports on a task with an attempt token. What other callers do with its tasks (cancel, pause, assign, abort) does not
count, with one exception: when an agent without tasks gets one, `last_seen_at` is set. Heartbeats are frequent, so a
heartbeat updates one narrow row (`agent_pulses`), changes no indexed column, takes no zone lock and writes no event. A
heartbeat is added to the history if the reported health or the current task has changed, and otherwise at most every
ten seconds. The history is kept for an hour. A status change that follows from a heartbeat is decided under the zone's
lock by a second command, `RefreshStatus`, before the response. If the process dies between the two commands, the next
heartbeat submits `RefreshStatus` again.

**Stale.** `agents.look_at` is the time of the next check. If the agent is not stale, the check sets `look_at` to
`last_seen_at` plus the stale threshold. No timers are kept in memory. A check locks the agent's row in `agent_pulses`,
so a concurrent heartbeat is either seen by the check, or finds a stale agent and revives it. A later heartbeat revives
a stale agent (`agent.revived`), and so does a claim. Attempts that were aborted in the meantime are not restored.

**A heartbeat has two parts**: the agent's own state, and a report on its current task, which `domain.tasks` checks
(`routes/heartbeat_routes.py`). Both parts are checked before anything changes. Then the agent's state is recorded, then
the report. If the attempt has ended, the heartbeat still counts, and its response contains a warning.

**An agent that the server registers** for another component (a member of a fleet) cannot become stale before it is seen
for the first time, because it may never start. `look_at` is null until its first heartbeat, claim or own registration.

**An agent with a launcher** runs only while it has a task, so it can become stale only then. It cannot send a heartbeat
before it is launched again, so the server sets a stale one back to IDLE after another stale threshold.

**Capabilities decide which secrets an agent receives.** A token of an agent can change only that agent, can remove
capabilities but not add any, and cannot create an agent. Only an OWNER or ADMIN can set the launcher, and only to one
from the server's configuration. A terminated agent that is registered again starts with default settings.

The number of agents in a zone is not limited, and neither is the number of tasks. A caller that may register agents may
also create any number of tasks, a row is small, and only lists and retention scan all rows. Terminated agents are kept
as long as tasks that ended at the same time, and longer while a task refers to them (`sweeps`).

Errors. An agent that does not exist in the workspace is 404 `agent_not_found`. A heartbeat for a terminated agent is
409 `agent_terminated`. The agent's own token is refused (401), even after the same id is registered again, because a
token is valid for one registration (`access.rules`). Terminating a terminated agent succeeds and
changes nothing. While the database is unavailable, a heartbeat gets a 503 and does not count. So a long outage
makes agents stale, and their next heartbeats revive them.
"""
