"""Tasks: durable units of work with dependencies, retries, progress and checkpoints.

This component decides which task may start, which agent gets it, which reports about it are accepted, and how its
end affects the tasks that depend on it.

States. A PENDING task is waiting for an agent. Before that, it may be waiting for other tasks or for a point in time: a
requested start time, or the end of the backoff after a failed attempt. One index orders ready tasks by class (task type
and required capabilities) and by rank, a number that the zone's strategy determines. A claim takes the tasks with the
lowest ranks from the classes that match its agent. If a new task is ready, it is offered to a waiting claim of the same
process in the commit that creates it. If tasks become ready later, waiting claims are woken after that commit.
`docs/states/task.md` has the diagram.

Attempts. Each claim starts an attempt, which has a number and a token. A report about an attempt needs the token of the
current attempt; a report with an older token is refused and changes nothing. Tasks have no leases of their own: an
attempt lasts as long as its agent sends heartbeats, claims or reports (`domain.agents`), and at most `timeoutSeconds`.

Batches. One lane decides all task commands, under the locks of their zones: load, decide (`rules.decider`, without
I/O), persist, commit. A batch of 1,000 commands takes a few round trips to the database.

Failures. After an attempt fails, times out, makes no progress or loses its agent, the task is retried after a
backoff. The end of the backoff is stored in the row, so it survives restarts. When no retry is left, the task is FAILED
and final, its last event carries `exhausted` for alerts, and its dependents are failed or unblocked in bounded passes.
If the response to a claim cannot be delivered, its attempts are released and do not count. While no coordinator is
running, timeouts, retries and start times take effect late, but none is lost: all of these times are stored in rows.
"""
