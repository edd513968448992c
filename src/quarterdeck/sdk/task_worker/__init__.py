"""A worker that runs the tasks of an agent with Python functions.

| module    | what it does                                                                                  |
|-----------|-----------------------------------------------------------------------------------------------|
| worker    | registers the agent, runs the loops, shuts down                                               |
| calls     | the calls that claim tasks and give them back, and the heartbeat of the agent                 |
| attempt   | the attempt object that a function gets, with its progress and log calls                      |
| handlers  | calls the function for a task type, and turns its return value or exception into an outcome    |

The loops are in `sdk.worker_core`.

Two concurrent *claims* request as many tasks as there are free slots, each with a long poll. *Runners* run the attempts
one after another. Each outcome goes to an *outbox*, which sends all accumulated outcomes in one call. The *heartbeat*
names all held tasks, at the interval that the server requests. Its response names tasks to cancel or pause.

Guarantees. At most `concurrency` functions run, and at most `concurrency + prefetch` tasks are held. The worker keeps
reporting the outcome of a function until the server accepts it, even across server restarts and outages. A worker that
stops gives back the tasks that have not started, and these attempts do not count.

How it fails. The tasks of a killed worker are retried when its agent becomes stale, or as soon as another worker starts
as the same agent. An agent has one worker at a time: the last one to start replaces the others. The interrupted attempt
counts, and the next one continues from the last checkpoint. If a worker stalls until its agent is stale, the server
refuses its outcomes (`stale_attempt`). The worker logs the refusal and continues. The work is then done twice but
counts once, so functions must be idempotent. If a function raises, its attempt fails and is retried while retries
remain. If the server refuses the worker itself (invalid token), the worker shuts down and raises that refusal. The
worker also stops when its agent ends: immediately if the agent was terminated, after the last task if it is draining.
"""

from quarterdeck.sdk.task_worker.attempt import Attempt, Done, ThreadAttempt
from quarterdeck.sdk.task_worker.worker import TaskWorker, WorkerOptions

__all__ = ["Attempt", "Done", "TaskWorker", "ThreadAttempt", "WorkerOptions"]
