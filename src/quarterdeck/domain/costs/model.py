"""Types for costs and budgets.

In rows and commands, amounts of money are integers in micro-dollars; in requests and responses, they are in dollars.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis

MICROS_PER_USD = 1_000_000
BUDGETS_MAX = 1_000
"""Maximum number of budgets per zone."""
GroupBy = Literal["task", "agent", "model", "taskType", "day", "workspace"]
Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$(?!\n)", description="2026-01-31, in UTC")]


class Scope(StrEnum):
    """Which costs a budget counts."""

    ZONE = "workspace"
    TASK_TYPE = "taskType"
    TASK = "task"


class Period(StrEnum):
    """The calendar period, in UTC, over which a budget sums costs. `total` never resets."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"


class BudgetedTask(Protocol):
    """The properties of a task that its costs and budgets depend on. Tasks are a layer above costs."""

    @property
    def zone_id(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def task_type(self) -> str: ...
    @property
    def agent_id(self) -> str | None: ...


class Cost(msgspec.Struct, frozen=True):
    """A cost that an agent reports for a task."""

    model: str
    input_tokens: int
    output_tokens: int
    usd_micros: int


BudgetKey = tuple[str, str, str, str]
"""(zone, scope, key, period)"""


class Budget(msgspec.Struct, frozen=True, array_like=True):
    """A row of `budgets`; fields in the order of `columns budget` in `queries.sql`.

    The spent amounts are those of the period that began at `began_at`, which may have ended: see `roll_over`.
    """

    zone_id: str
    scope: Scope
    scope_key: str
    period: Period
    usd_micros: int | None
    tokens: int | None
    began_at: Millis
    ends_at: Millis | None
    spent_usd_micros: int
    spent_tokens: int
    created_by: str
    created_at: Millis
    updated_at: Millis

    @property
    def key(self) -> BudgetKey:
        return (self.zone_id, self.scope, self.scope_key, self.period)


class CostSum(msgspec.Struct, frozen=True, array_like=True):
    usd_micros: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: CostSum) -> CostSum:
        return CostSum(
            self.usd_micros + other.usd_micros,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Charge(msgspec.Struct, frozen=True):
    """The amounts that a batch adds to one budget."""

    budget: Budget
    """The budget after the charge, in its current period."""
    usd_micros: int
    tokens: int
    is_newly_spent: bool
    """The budget was not spent before this charge and is spent after it."""


# -- commands and filters ----------------------------------------------------------------------------------------


class BudgetCommand(msgspec.Struct, frozen=True, kw_only=True):
    zone_id: str
    caller: Caller
    trace: str | None
    scope: Scope
    scope_key: str
    period: Period

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer

    @property
    def key(self) -> BudgetKey:
        return (self.zone_id, self.scope, self.scope_key, self.period)


class PutBudget(BudgetCommand, frozen=True, kw_only=True):
    usd_micros: int | None
    tokens: int | None


class RemoveBudget(BudgetCommand, frozen=True, kw_only=True):
    pass


class CostFilter(msgspec.Struct, frozen=True, kw_only=True):
    zone_id: str
    caller: Caller
    group_by: GroupBy
    since_day: int | None
    """The first day to include, as days since 1970-01-01."""
    until_day: int | None
    """The first day to exclude."""
    after: str | None
    """The key of the last group of the previous page."""
    limit: int


class CostGroup(msgspec.Struct, frozen=True, array_like=True):
    key: str
    usd_micros: int
    input_tokens: int
    output_tokens: int


# -- requests and responses --------------------------------------------------------------------------------------


class CostQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    group_by: GroupBy = "workspace"
    since: Annotated[Day | None, Meta(description="first day to include")] = None
    until: Annotated[Day | None, Meta(description="first day to exclude")] = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    cursor: Annotated[str, Meta(max_length=512)] | None = None


class BudgetBody(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    scope: Scope
    period: Period
    key: Annotated[str, Meta(min_length=1, max_length=128, description="the task type or task id")] | None = None
    usd: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    tokens: Annotated[int, Meta(ge=0, le=10**15, description="input and output tokens together")] | None = None


class BudgetKeyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: Scope
    period: Period
    key: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class BudgetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    cursor: Annotated[str, Meta(max_length=1_024)] | None = None


class CostView(msgspec.Struct, frozen=True, rename="camel"):
    key: str
    usd: float
    input_tokens: int
    output_tokens: int


class CostList(msgspec.Struct, frozen=True, rename="camel"):
    group_by: GroupBy
    items: list[CostView]
    next_cursor: str | None


class BudgetView(msgspec.Struct, frozen=True, rename="camel"):
    scope: Scope
    key: str | None
    period: Period
    usd: float | None
    tokens: int | None
    used_usd: float
    """In the current period, like `used_tokens`."""
    used_tokens: int
    is_spent: bool
    period_began_at: str
    period_ends_at: str | None
    created_by: str
    created_at: str
    updated_at: str


class SpentBudgetView(msgspec.Struct, frozen=True, rename="camel"):
    """An exhausted budget that keeps a task from being claimed."""

    code: str
    detail: str
    scope: Scope
    key: str | None
    period: Period
    usd: float | None
    used_usd: float
    tokens: int | None
    used_tokens: int
    period_ends_at: str | None
