"""Agents: the registered workers, and the authorization of callers in a workspace.

An agent has capabilities, a limit on concurrent tasks, and a heartbeat interval. This component decides which agents
exist and what status each has.

| status     | when                                                                                          |
|------------|-----------------------------------------------------------------------------------------------|
| IDLE       | it is active and holds no task                                                                |
| WORKING    | it is active and holds tasks; computed, not stored                                            |
| DEGRADED   | it reports itself as degraded: it may claim tasks, but nothing is launched for it             |
| ERROR      | it was not seen for `staleThresholdSeconds` (reason `stale`): it gets no tasks, and its tasks |
|            | are taken from it in the same transaction (`domain.tasks` listens to `agent.stale`)           |
| TERMINATED | it was terminated, at once or, if `graceful`, after its last task                             |

**Seen.** An agent is seen (`last_seen_at`) by a heartbeat, its registration, a claim for as long as it waits, or a
report on a task with an attempt token. What others do with its tasks (cancel, pause, assign, abort) does not count,
with one exception: when an agent without tasks gets one, `last_seen_at` is set. Heartbeats are frequent, so each writes
one narrow row without indexes (`agent_pulses`), without the zone's lock and without an event. The history is kept for
an hour, with a row for each change and one every ten seconds. A status change that follows from a heartbeat is decided
under the zone's lock by a second command, `RefreshStatus`, before the response. If the process dies in between, the
next heartbeat detects and submits it again.

**Stale.** `agents.look_at` is the next time to check an agent. The check moves it to the threshold after
`last_seen_at`. No timers are kept in memory. A check locks the agent's row in `agent_pulses`, so a concurrent heartbeat
is either seen by the check, or finds a stale agent and revives it. A late heartbeat revives an agent (`agent.revived`),
and so does a claim; tasks that were taken from it do not come back.

**A heartbeat has two parts**: the agent's own state, and a report on its current task, which `domain.tasks` checks
(`heartbeat_port`). Everything that can be refused is checked before anything changes. Then the agent's part is
recorded, then the report. If the attempt has ended, the heartbeat still counts: its response informs the agent of that.

**An agent that the server registers** for another component (a member of a fleet) cannot become stale before it is seen
for the first time, because it may never start. `look_at` is null until its first heartbeat, claim or own registration.

**An agent with a launcher** runs only while it has a task, so it can become stale only then. Only a launcher can make
it active again, so a stale one is set to IDLE after another stale threshold.

**Capabilities decide which secrets an agent receives.** A token of an agent can change only that agent, can remove
capabilities but not add any, and cannot create an agent. Only an OWNER or ADMIN can set the launcher, to one of the
server's configuration. A terminated agent that is registered again keeps nothing of its former settings.

The number of agents of a zone is not limited, just like its tasks: a caller that may register agents may also create
any number of tasks, a row is small, and only lists and retention scan all of them. Terminated agents are deleted as
late as tasks that ended at the same time, and only if no task refers to them (`sweeps`).

How it fails. A missing agent, or one of another workspace, is 404 `agent_not_found`. A heartbeat of a terminated agent
is 409 `agent_terminated`, and its token is refused (401), also after another registration under the same id: a token is
valid for one registration (`rules.errors.agent_token_problem`). Terminating a terminated agent succeeds and changes
nothing. While the database is unavailable, a heartbeat is a 503 and does not count. So a long outage makes agents
stale, and their next heartbeats revive them.

**Authorization** (`operations.authorization`). A caller in a workspace acts for a session, for an agent or as a member,
or it is unknown there. This is checked in the transaction of its command, under the same lock: an ended session, a
terminated agent or a removed member is refused from that commit on. For this reason agents are a layer above sessions
(`docs/decisions/0020`).
"""
