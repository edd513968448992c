"""Creates tasks for the worker: one book, 50 books at once, and an empty book, which fails."""

from __future__ import annotations

from quarterdeck.sdk.sync import Quarterdeck
from quarterdeck.sdk.work_types import Task

TIMEOUT_SECONDS = 60.0


def main() -> None:
    with Quarterdeck.connect() as qd:
        book = qd.tasks.create("Moby-Dick", "reading", input_context={"pages": 5}, required_capabilities=["english"])
        [finished] = qd.tasks.wait([book.id], timeout=TIMEOUT_SECONDS)
        print("one:    ", finished.status, finished.output_result, "-", finished.summary)
        steps = [line.message for line in qd.tasks.logs(book.id, event="progress_update")]
        print("steps:  ", len(steps))

        created = qd.tasks.create_many(
            [{"title": f"book {n}", "task_type": "reading", "input_context": {"pages": 2}} for n in range(50)]
        )
        finished_tasks = qd.tasks.wait([task.id for task in created if isinstance(task, Task)], timeout=TIMEOUT_SECONDS)
        print("at once:", sum(task.status == "COMPLETED" for task in finished_tasks), "of", len(finished_tasks))

        empty = qd.tasks.create("an empty book", "reading", input_context={"pages": 0})
        [failed] = qd.tasks.wait([empty.id], timeout=TIMEOUT_SECONDS)
        print("empty:  ", failed.status, "-", failed.last_error)


if __name__ == "__main__":
    main()
