"""A task worker that runs the tasks of the agent `reader-1` until Ctrl-C.

If you kill it during a task and start it again, the task continues from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import logging

from quarterdeck.sdk import Attempt, Done, Fail, Quarterdeck, TaskWorker

# Connects when the worker starts, not here.
worker = TaskWorker(Quarterdeck.connect(), "reader-1", concurrency=4)


@worker.task("reading", capabilities=["english"])
async def read(task: Attempt) -> Done:
    """Read page by page. A model would take longer."""
    pages = int(str(task.input["pages"]))
    if pages < 1:
        # Not retryable: a retry would fail too.
        raise Fail("the book is empty", retryable=False)
    pages_read = int(str(task.checkpoint.get("done", 0)))
    for page in range(pages_read + 1, pages + 1):
        task.check()  # raises if the task was canceled
        await asyncio.sleep(0)
        await task.progress(100 * page // pages, f"page {page}", checkpoint={"done": page})
    await task.log("INFO", "read to the end", pages=pages)
    return Done({"pages": pages}, summary=f"{pages} pages read")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    worker.main()
