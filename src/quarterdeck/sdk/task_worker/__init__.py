"""A task worker: does the tasks of an agent by functions.

| module    | what it decides                                                                              |
|-----------|----------------------------------------------------------------------------------------------|
| serving   | the worker's life: registering, working, stopping                                             |
| claiming  | when to ask for tasks, for how many, and under which id                                       |
| holding   | which attempts run, wait or are given back                                                    |
| attempts  | what a function may know of its attempt, and say of it                                        |
| handlers  | which function is meant, and what its return or its exception means                           |
| reporting | telling outcomes and progress in batches until they are heard                                 |
| beating   | one heartbeat for the whole agent; which tasks are not wanted any more                        |

*Claims*, two at a time, ask for as many tasks as there is room for and wait for them on the server. *Runners* take what
came, one attempt after another. Each outcome goes to an *outbox*, which tells whatever has gathered in one call. The
*heartbeat* names everything that is held, as often as the server asks, and hears in its answer what is not wanted any
more.

What it promises. Never more than `concurrency` functions run, and never more than `concurrency + prefetch` tasks are
held. An attempt whose function has ended is told until the server has heard it, over restarts and outages of the
server. A worker that stops gives back what it has not begun, and that counts as no attempt.

How it fails. The tasks of a worker that is killed are given to others when its agent has been silent for too long, or
as soon as another worker begins as the same agent: an agent is one worker at a time, and the last to begin is it. That
attempt counts, and the next goes on from the last checkpoint. One that was frozen for longer finds its outcomes refused
(`stale_attempt`), logs that and goes on: what it did is done twice, and counts once, which is why functions must bear
being called again. A function that raises fails its attempt, and another follows while retries remain. If the server
refuses the worker itself (its token is no longer good), it winds down and raises that. It ends with its agent: at
once where that was terminated, with the last task where it is draining.
"""

from quarterdeck.sdk.task_worker.attempt import Attempt, Done, ThreadAttempt
from quarterdeck.sdk.task_worker.worker import TaskWorker, WorkerOptions

__all__ = ["Attempt", "Done", "TaskWorker", "ThreadAttempt", "WorkerOptions"]
