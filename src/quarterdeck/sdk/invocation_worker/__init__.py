"""A worker that implements the methods of a service with Python functions.

| module    | what it does                                                                                  |
|-----------|-----------------------------------------------------------------------------------------------|
| worker    | registers the service, runs the loops, shuts down                                             |
| calls     | the calls that claim, extend, report and give back                                            |
| methods   | calls the function for a method, and turns its return value or exception into an outcome       |

The loops, the shutdown and the thread pool are in `sdk.worker_core`.

Three loops share the set of held leases. The *claimer* claims as many invocations as there are free slots, with a long
poll that waits while earlier invocations are still running. The *reporter* collects the outcomes of methods and sends
all that have accumulated in one call. The *heartbeat* extends all leases in one call, at intervals of one third of the
lease time. Its response names the attempts that were canceled.

Guarantees. At most `concurrency` methods run, and at most `concurrency + prefetch` leases are held. The worker keeps
reporting the outcome of a method until the server accepts it, even across server restarts and outages. A worker that
stops gives back the leases whose methods have not started, and these attempts do not count.

How it fails. The leases of a killed worker expire, and each counts as a failed attempt. If a worker stalls for longer
than its leases, the server refuses its outcomes (`stale_attempt`). The worker logs the refusal and continues. The work
is then done twice but counts once, so methods must be idempotent. If a method raises, its attempt fails and is retried
while attempts remain. If it raises `Fatal`, the invocation fails. If the server refuses the worker itself (invalid
token, ended session), the worker shuts down and raises that refusal. During shutdown it keeps retrying its reports if a
renewed token might help. A plain function that never returns does not keep the program running, because its thread is a
daemon thread.
"""

from quarterdeck.sdk.invocation_worker.methods import Context
from quarterdeck.sdk.invocation_worker.worker import Offer, Worker

__all__ = ["Context", "Offer", "Worker"]
