"""Errors and stack traces without the secrets of their task: struck out before they are stored, shown or told.

An agent that fails quotes what it was given more often than not. What it was given is read once more for that, without
a lock: the secrets of an attempt's input do not change, and those of its checkpoint are the agent's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.rows import TABLE, Whole
from quarterdeck.domain.tasks.operations.reads import TaskRef
from quarterdeck.engine.secrets import About, Safe

Strike = Callable[[str], str]


async def strikes(show: Callable[[TaskRef], Awaitable[Whole]], safe: Safe, refs: Sequence[TaskRef]) -> list[Strike]:
    """For each task what strikes its secrets out of a text."""
    found = await asyncio.gather(*(show(ref) for ref in refs), return_exceptions=True)
    return [_strike(safe, each) for each in found]


def _strike(safe: Safe, whole: Whole | BaseException) -> Strike:
    if isinstance(whole, Problem):
        # There is no such task, or not for this caller, who is told so by whoever decides: nothing will be stored.
        return safe.strike
    if isinstance(whole, BaseException):
        raise whole
    return partial(safe.strike, stored=_stored(whole))


def _stored(whole: Whole) -> list[tuple[str, About]]:
    row, said = whole.task, whole.content
    fields = {
        "input_context": said.input_context,
        "checkpoint_data": said.checkpoint_data,
        "output_result": said.output_result,
    }
    return [(text, (row.zone_id, TABLE, row.id, field)) for field, text in fields.items() if text is not None]
