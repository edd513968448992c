"""A caller that has the service `summariser` summarise texts, one at a time and many at once."""

from __future__ import annotations

import sys

from quarterdeck.sdk import NotSucceeded
from quarterdeck.sdk.errors import NotFound
from quarterdeck.sdk.sync import Quarterdeck

TEXT = (
    "A session is one live run of an agent. Sessions form trees. "
    "Terminating a session terminates its tree. Quotas limit the size of each tree."
)


def main() -> None:
    with Quarterdeck.connect() as qd:
        try:
            service = qd.services.find("summariser")
        except NotFound as error:
            sys.exit(f"{error.detail} Start worker.py first.")

        # A durable call: it survives a crash of this program, the worker and the server. Its idempotency key ensures
        # that a retry does not create a second call.
        invocation = qd.invocations.enqueue(service.id, "summarise", {"text": TEXT, "sentences": 2})
        print("summary: ", qd.invocations.wait(invocation.id, timeout=60).result)
        print("keywords:", qd.invocations.call(service.id, "keywords", {"text": TEXT}))

        # Many at once: the worker claims and completes them in batches.
        invocations = [qd.invocations.enqueue(service.id, "summarise", {"text": f"Text {n}."}) for n in range(50)]
        results = [qd.invocations.wait(item.id, timeout=60) for item in invocations]
        print("at once: ", sum(item.status == "succeeded" for item in results), "of", len(invocations))

        try:
            qd.invocations.call(service.id, "summarise", {"text": " "})
        except NotSucceeded as failure:
            print("empty:   ", failure.status, failure.error)


if __name__ == "__main__":
    main()
