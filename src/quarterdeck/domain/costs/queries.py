"""SQL statements for costs and budgets."""

from quarterdeck.store.sql import load

Q = load(__package__)
