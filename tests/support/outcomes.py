"""The refusal of a call, for tests that expect one."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest

from quarterdeck.core.errors import Problem


async def problem_of(awaitable: Awaitable[object]) -> Problem:
    """Await a call that must be refused."""
    with pytest.raises(Problem) as problem:
        await awaitable
    return problem.value


async def problem_code(awaitable: Awaitable[object]) -> str:
    return (await problem_of(awaitable)).code


async def problem_detail(awaitable: Awaitable[object]) -> str:
    return (await problem_of(awaitable)).detail
