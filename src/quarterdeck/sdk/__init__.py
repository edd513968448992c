"""The SDK: a typed client of Quarterdeck for asyncio, the same for plain code, and a worker.

    async with Quarterdeck.connect() as qd:
        planner = await qd.sessions.spawn("planner")
        summariser = await qd.services.find("summariser")
        print(await qd.invocations.call(summariser.id, "summarise", {"text": "…"}))

| module      | what it decides                                                                            |
|-------------|--------------------------------------------------------------------------------------------|
| client      | the client: its nouns, its zone, from where to where it lives                               |
| sessions, services, invocations, delegations, events, zones | the calls, one file per noun                |
| agents, tasks, members, coordinator, costs, webhooks | the same of the work plane                         |
| model, work, asks | what the server shows, and what may be said to it: types                              |
| errors      | every way a call can fail                                                                  |
| remote      | one call: found, sent, sent again, understood                                              |
| gathering   | which calls go together                                                                    |
| retrying    | whether a call is made again, and when                                                     |
| following   | events over whatever cuts the connection                                                   |
| waiting     | the end of an invocation or a task, without asking over and over                           |
| worker      | serving the methods of a service                                                           |
| tasking     | doing the tasks of an agent                                                                |
| sync        | the client for code without a loop; written by `generate`, never by hand                   |
| background  | the loop in a thread that `sync` runs on                                                   |

It imports `client` and `core`, and nothing of the server.

An unknown outcome is never doubled. Every call that makes something bears an idempotency key, its own if none is given,
and keeps it over its repetitions; so an answer that was lost is asked for again, and what was made is found. What could
be done twice (`suspend`, `resume`, `rotate_secret`) is not repeated after a lost answer, and the caller is told `Lost`.

How it fails. Everything that the server refuses, and everything that keeps it from being asked, is an `errors.Problem`
with a code for programs and a sentence for people. What may pass — a server that starts again, a database that is away,
a full queue — is tried again by itself within `Options.patience`.
"""

from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Canceled, Fail, Fatal, LogReset, NotSucceeded, Problem, Release
from quarterdeck.sdk.invocation_worker import Context, Offer, Worker
from quarterdeck.sdk.task_worker import Attempt, Done, TaskWorker, ThreadAttempt, WorkerOptions
from quarterdeck.sdk.transport import Options
from quarterdeck.sdk.work_types import Cost

__all__ = [
    "Attempt",
    "Canceled",
    "Context",
    "Cost",
    "Done",
    "Fail",
    "Fatal",
    "LogReset",
    "NotSucceeded",
    "Offer",
    "Options",
    "Problem",
    "Quarterdeck",
    "Release",
    "TaskWorker",
    "ThreadAttempt",
    "Worker",
    "WorkerOptions",
]
