"""A server inside this program: tasks with dependencies, run by functions in this program."""

from __future__ import annotations

import asyncio

import quarterdeck
from quarterdeck.core.ids import new_id
from quarterdeck.sdk import Attempt, Done, TaskWorker
from quarterdeck.sdk.options import NewTask


async def main() -> None:
    # Uses a temporary data directory. Pass a directory to keep the data.
    async with quarterdeck.embedded() as qd:
        worker = TaskWorker(qd, "librarian", concurrency=4)

        @worker.task("read")
        async def read(task: Attempt) -> int:
            return len(str(task.input["text"]).split())

        @worker.task("sum up")
        async def sum_up(task: Attempt) -> Done:
            part_ids = task.input["parts"]
            assert isinstance(part_ids, list)
            tasks = await qd.tasks.wait([str(part_id) for part_id in part_ids])
            words = sum(task.result_as(int) for task in tasks)
            return Done(words, summary=f"{words} words in {len(tasks)} texts")

        texts = ["Sessions form trees.", "An invocation is a durable call.", "A task may have dependencies."]
        part_ids = [new_id() for _ in texts]
        summary_id = new_id()
        tasks: list[NewTask] = [
            {"title": text, "task_type": "read", "id": part_id, "input_context": {"text": text}}
            for part_id, text in zip(part_ids, texts, strict=True)
        ]
        tasks.append(
            {
                "title": "total",
                "task_type": "sum up",
                "id": summary_id,
                "depends_on": part_ids,
                "input_context": {"parts": part_ids},
            }
        )
        await qd.tasks.create_many(tasks)
        print("waiting for:", (await qd.tasks.explain(summary_id)).code)
        print("attempts:   ", await worker.drain())
        [summary] = await qd.tasks.wait([summary_id])
        print("status:     ", summary.status)
        print("result:     ", summary.output_result, "-", summary.summary)


if __name__ == "__main__":
    asyncio.run(main())
