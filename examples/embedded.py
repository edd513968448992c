"""A server inside this program: tasks that depend on each other, done by functions here."""

from __future__ import annotations

import asyncio

import quarterdeck
from quarterdeck.core.ids import new_id
from quarterdeck.sdk import Attempt, Done, TaskWorker
from quarterdeck.sdk.options import NewTask


async def main() -> None:
    # A directory that is gone afterwards; give one, and everything is there again next time.
    async with quarterdeck.embedded() as qd:
        worker = TaskWorker(qd, "librarian", concurrency=4)

        @worker.task("read")
        async def read(task: Attempt) -> int:
            return len(str(task.input["text"]).split())

        @worker.task("sum up")
        async def sum_up(task: Attempt) -> Done:
            parts = task.input["parts"]
            assert isinstance(parts, list)
            found = await qd.tasks.wait([str(part) for part in parts])
            words = sum(part.result_as(int) for part in found)
            return Done(words, summary=f"{words} words in {len(found)} texts")

        texts = ["Sessions form trees.", "An invocation is a durable call.", "A task may wait for others."]
        parts = [new_id() for _ in texts]
        whole = new_id()
        asked: list[NewTask] = [
            {"title": text, "task_type": "read", "id": part, "input_context": {"text": text}}
            for part, text in zip(parts, texts, strict=True)
        ]
        asked.append(
            {
                "title": "all of it",
                "task_type": "sum up",
                "id": whole,
                "depends_on": parts,
                "input_context": {"parts": parts},
            }
        )
        await qd.tasks.create_many(asked)
        print("waits: ", (await qd.tasks.explain(whole)).code)
        print("tries: ", await worker.drain())
        [ended] = await qd.tasks.wait([whole])
        print("status:", ended.status)
        print("result:", ended.output_result, "-", ended.summary)


if __name__ == "__main__":
    asyncio.run(main())
