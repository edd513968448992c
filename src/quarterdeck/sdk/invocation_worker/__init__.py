"""A worker: serves the methods of a service as functions.

| module    | what it decides                                                                              |
|-----------|----------------------------------------------------------------------------------------------|
| serving   | the worker's life: registering, serving, stopping                                             |
| claiming  | when to ask for work, for how much, and under which id                                        |
| holding   | which leases run, wait or are given back; keeping them alive                                  |
| methods   | which function is meant, what it is given, and what its return or its exception means         |
| reporting | telling outcomes in batches until they are heard                                              |
| signals   | the worker as a whole program                                                                 |
| threads   | where plain functions run, and that they keep no program from ending                          |

Three loops, which meet in what is held. The *claimer* asks for as many invocations as there is room for and waits for
them on the server, while what was taken before still runs. Each method that ends hands its outcome to the *reporter*,
which tells whatever has gathered in one call. The *heartbeat* prolongs every lease in one call, a third of a lease
after the last, and hears in its answer which attempts are not wanted any more.

What it promises. Never more than `concurrency` methods run, and never more than `concurrency + prefetch` leases are
held. An attempt whose method has ended is told until the server has heard it, over restarts and outages of the server.
A worker that stops gives back what it has not begun, and that counts as no attempt.

How it fails. A worker that is killed loses its leases when they run out; each counts as a failed attempt. One that was
frozen past its leases finds its outcomes refused (`stale_attempt`), logs that and goes on: what it did is done twice,
and counts once, which is why methods must bear being called again. A method that raises fails its attempt, and another
follows; one that raises `Fatal` fails the invocation. If the server refuses the worker itself (its token is no longer
good, its session has ended), it winds down and raises that; outcomes are told again until its end where another token
may help. A plain function that does not return keeps nobody: its thread ends with the program.
"""

from quarterdeck.sdk.invocation_worker.methods import Context
from quarterdeck.sdk.invocation_worker.worker import Offer, Worker

__all__ = ["Context", "Offer", "Worker"]
