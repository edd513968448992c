"""Operations of costs.

| module  | what it does                                                                                        |
|---------|-----------------------------------------------------------------------------------------------------|
| charges | for tasks, in their transactions: reads spent budgets, writes costs, charges budgets, deletes both  |
| budgets | sets and removes budgets                                                                            |
| reads   | lists budgets, sums costs                                                                           |
"""

from quarterdeck.domain.costs.operations.charges import (
    LoadedSpentBudgets as LoadedSpentBudgets,
    delete_statements as delete_statements,
    spent_budget_statements as spent_budget_statements,
    write_costs as write_costs,
)
