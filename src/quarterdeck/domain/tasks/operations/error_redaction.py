"""Redacts the secrets of a task from errors and stack traces, before they are stored, shown or published.

An error message often quotes the task's input. The secrets to redact are therefore read from the task's input,
checkpoint and output. No lock is needed: the input never changes, and only the reporting agent changes the checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.rows import TABLE, FullTask
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.secrets import FieldCipher, FieldRef

Redactor = Callable[[str], str]


async def load_redactors(
    read_task: Callable[[TaskLookup], Awaitable[FullTask]], cipher: FieldCipher, lookups: Sequence[TaskLookup]
) -> list[Redactor]:
    """Return one function per lookup, which redacts the secrets of that task from a string."""
    results = await asyncio.gather(*(read_task(lookup) for lookup in lookups), return_exceptions=True)
    return [_redactor(cipher, result) for result in results]


def _redactor(cipher: FieldCipher, result: FullTask | BaseException) -> Redactor:
    if isinstance(result, Problem):
        # The task does not exist or the caller may not read it. The lane will refuse the command, so nothing is stored.
        return cipher.redact
    if isinstance(result, BaseException):
        raise result
    return partial(cipher.redact, stored=_encrypted_fields(result))


def _encrypted_fields(full_task: FullTask) -> list[tuple[str, FieldRef]]:
    task, content = full_task.task, full_task.content
    fields = {
        "input_context": content.input_context,
        "checkpoint_data": content.checkpoint_data,
        "output_result": content.output_result,
    }
    return [(text, (task.zone_id, TABLE, task.id, field)) for field, text in fields.items() if text is not None]
