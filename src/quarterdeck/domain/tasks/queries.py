"""The SQL statements of tasks. `queries.sql` holds those of the task lane; the other files are split by subject."""

from quarterdeck.store.sql import load

Q = load(__package__)
COORDINATOR = load(__package__, "coordinator.sql")
LOGS = load(__package__, "logs.sql")
LISTS = load(__package__, "lists.sql")
COSTS = load(__package__, "costs.sql")
