"""The SQL statements for tasks. `queries.sql` has the statements of the task lane; each other file covers one topic."""

from quarterdeck.store.sql import load

Q = load(__package__)
COORDINATOR = load(__package__, "coordinator.sql")
LOGS = load(__package__, "logs.sql")
LISTS = load(__package__, "lists.sql")
COSTS = load(__package__, "costs.sql")
