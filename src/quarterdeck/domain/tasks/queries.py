"""The statements of tasks: those that decide, in `queries.sql`, and the rest by what it is about."""

from quarterdeck.store.sql import load

Q = load(__package__)
COORDINATOR = load(__package__, "coordinator.sql")
LOGS = load(__package__, "logs.sql")
LISTS = load(__package__, "lists.sql")
COSTS = load(__package__, "costs.sql")
