"""A caller: it has texts summarised by whoever serves that, one at a time and many at once."""

from __future__ import annotations

import sys

from quarterdeck.sdk import NotSucceeded
from quarterdeck.sdk.errors import NotFound
from quarterdeck.sdk.sync import Quarterdeck

TEXT = (
    "A session is one live run of an agent. Sessions form trees. "
    "A session takes its whole tree with it when it ends. No tree outgrows its bounds."
)


def main() -> None:
    with Quarterdeck.connect() as qd:
        try:
            service = qd.services.find("summariser")
        except NotFound as error:
            sys.exit(f"{error.detail} Start worker.py first.")

        # A durable call: it survives this program, the worker and the server, and with the same key it is made once.
        invocation = qd.invocations.enqueue(service.id, "summarise", {"text": TEXT, "sentences": 2})
        print("summary: ", qd.invocations.wait(invocation.id, timeout=60).result)
        print("keywords:", qd.invocations.call(service.id, "keywords", {"text": TEXT}))

        # Many at once: the worker takes and reports them in batches.
        invocations = [qd.invocations.enqueue(service.id, "summarise", {"text": f"Text {n}."}) for n in range(50)]
        results = [qd.invocations.wait(item.id, timeout=60) for item in invocations]
        print("at once: ", sum(item.status == "succeeded" for item in results), "of", len(invocations))

        try:
            qd.invocations.call(service.id, "summarise", {"text": " "})
        except NotSucceeded as failure:
            print("empty:   ", failure.status, failure.error)


if __name__ == "__main__":
    main()
