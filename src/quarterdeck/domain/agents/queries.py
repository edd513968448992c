"""SQL statements of agents."""

from quarterdeck.store.sql import load

Q = load(__package__)
