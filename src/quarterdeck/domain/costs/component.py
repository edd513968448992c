"""Builds the component for costs and budgets."""

from __future__ import annotations

from quarterdeck.domain.costs.operations.budgets import BudgetWriter, TaskStatesStatement
from quarterdeck.domain.costs.routes import CostHandlers, routes
from quarterdeck.engine.runtime import Component, Runtime


class Costs:
    def __init__(self, runtime: Runtime, task_states_statement: TaskStatesStatement) -> None:
        """`task_states_statement` finds the tasks of new budgets; it is passed in, because tasks are a layer above
        costs."""
        self.lane = runtime.lanes.add_write_lane("budget", BudgetWriter(task_states_statement).change)
        self.component = Component(routes(CostHandlers(runtime.engine, self.lane.submit)))
