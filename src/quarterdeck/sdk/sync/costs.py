"""Written by `make sdk` from `sdk/costs.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

from quarterdeck.sdk import costs
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.work_types import Budget, CostSum, GroupBy, Period, Scope


class Costs:
    def __init__(self, inner: costs.Costs, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def list(
        self, group_by: GroupBy = "workspace", *, since: date | None = None, until: date | None = None
    ) -> Iterator[CostSum]:
        """Sums, from one day to before another, in UTC."""
        return self._loop_thread.iterate(self._inner.list(group_by, since=since, until=until))


class Budgets:
    def __init__(self, inner: costs.Budgets, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def list(self) -> Iterator[Budget]:
        return self._loop_thread.iterate(self._inner.list())

    def put(
        self,
        scope: Scope,
        period: Period,
        *,
        key: str | None = None,
        usd: float | None = None,
        tokens: int | None = None,
    ) -> Budget:
        """Sets a budget. Where it is spent nothing more is given out, until it begins anew."""
        return self._loop_thread.run(self._inner.put(scope, period, key=key, usd=usd, tokens=tokens))

    def remove(self, scope: Scope, period: Period, *, key: str | None = None) -> None:
        """Not repeated after a lost answer: it would not be found."""
        self._loop_thread.run(self._inner.remove(scope, period, key=key))
