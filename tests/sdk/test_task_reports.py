"""Words about attempts: one that the server does not take is found, and its neighbours are heard. Nothing here needs a
server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from quarterdeck.sdk.errors import Invalid, Problem, TooLarge
from quarterdeck.sdk.task_worker.reports import Outbox, OutboxCallbacks
from quarterdeck.sdk.types import ItemProblem
from quarterdeck.sdk.work_types import TaskItem


class Server:
    def __init__(self, wrong: Problem, *, names_it: bool) -> None:
        self._wrong = wrong
        self._names_it = names_it
        self.heard: dict[str, ItemProblem | None] = {}
        self.refused: dict[str, Problem] = {}

    async def send(self, said: Sequence[str]) -> Sequence[TaskItem]:
        if "bad" in said and not self._names_it:
            raise self._wrong
        problem = ItemProblem(self._wrong.code, self._wrong.detail, self._wrong.status)
        return [TaskItem(each, error=problem if each == "bad" else None) for each in said]


@pytest.mark.parametrize("kind", [Invalid, TooLarge])
@pytest.mark.parametrize("names_it", [True, False], ids=["named", "all refused"])
async def test_a_word_that_is_never_taken_is_refused_by_itself(kind: type[Problem], names_it: bool) -> None:
    server = Server(kind("wrong", "It is wrong."), names_it=names_it)
    ways = OutboxCallbacks(server.send, server.heard.__setitem__, server.refused.__setitem__)
    outbox: Outbox[str] = Outbox("words", ways)
    for word in ("one", "bad", "two"):
        outbox.add(word)
    running = asyncio.create_task(outbox.run())
    await asyncio.wait_for(outbox.wait_until_sent(), 30)
    running.cancel()
    assert server.heard == {"one": None, "two": None}
    assert {name: (type(why), why.code) for name, why in server.refused.items()} == {"bad": (kind, "wrong")}
