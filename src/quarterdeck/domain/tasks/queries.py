"""The SQL statements for tasks. `queries.sql` has the statements of the task lane; each other file covers one topic."""

from quarterdeck.store.sql import load

Q = load(__package__)
COORDINATOR = load(__package__, "coordinator.sql")
LISTS = load(__package__, "lists.sql")
