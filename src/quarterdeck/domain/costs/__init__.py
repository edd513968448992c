"""Costs of tasks, and budgets that limit them.

This component decides which budgets a cost is charged to and whether a budget is spent, and it reports what was spent,
by task, agent, model, task type, day or zone.

Costs. An agent reports costs with the progress or the end of an attempt. `domain.tasks` passes them down, in the
transaction that accepts the report, so a report that is refused or repeated is not charged. They are added up per task
(`task_costs`, deleted with the task) and per day (`cost_days`, kept).

Budgets. A budget limits the costs of a zone, a task type or one task per calendar period in UTC. While a budget is
spent, its tasks are not claimed until the period ends or the budget is raised. Running attempts continue, so spending
may exceed a budget by what they still report. A new budget includes the costs of its period so far. Tasks read the
spent budgets of a zone in the batch that claims, under the zone's lock; charges and changes of budgets take the same
lock. Nothing resets budgets: the current period is computed from the time, and the first charge in it starts from 0.

How it fails. Sums stop growing at 2^53, because many JSON parsers round larger integers. A zone has at most
`BUDGETS_MAX` budgets. If a clock is set back, a budget stays in its stored period. Nothing here imports tasks
(`docs/decisions/0029-costs-below-tasks.md`).
"""
