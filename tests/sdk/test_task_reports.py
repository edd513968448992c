"""The outbox isolates a report that the server refuses and delivers the others. No server is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quarterdeck.sdk.errors import Invalid, Problem, TooLarge
from quarterdeck.sdk.types import ItemProblem
from quarterdeck.sdk.work_types import TaskItem
from quarterdeck.sdk.worker_core.reports import Outbox, OutboxCallbacks


class FakeServer:
    def __init__(self, problem: Problem, *, is_itemized: bool) -> None:
        self._problem = problem
        self._is_itemized = is_itemized
        self.settled: dict[str, ItemProblem | None] = {}
        self.refused: dict[str, Problem] = {}

    async def send(self, reports: Sequence[str]) -> Sequence[TaskItem]:
        if "bad" in reports and not self._is_itemized:
            raise self._problem
        item_problem = ItemProblem(self._problem.code, self._problem.detail, self._problem.status)
        return [TaskItem(each, error=item_problem if each == "bad" else None) for each in reports]


@pytest.mark.parametrize("problem_type", [Invalid, TooLarge])
@pytest.mark.parametrize("is_itemized", [True, False], ids=["item-refused", "batch-refused"])
async def test_refused_report_does_not_affect_the_others(problem_type: type[Problem], is_itemized: bool) -> None:
    server = FakeServer(problem_type("invalid", "Invalid."), is_itemized=is_itemized)
    callbacks = OutboxCallbacks(server.send, server.settled.__setitem__, server.refused.__setitem__)
    outbox: Outbox[str] = Outbox("reports", callbacks)
    for report in ("one", "bad", "two"):
        outbox.add(report)
    running = asyncio.create_task(outbox.run())
    await asyncio.wait_for(outbox.wait_until_sent(), 30)
    running.cancel()
    assert server.settled == {"one": None, "two": None}
    assert {name: (type(problem), problem.code) for name, problem in server.refused.items()} == {
        "bad": (problem_type, "invalid")
    }
