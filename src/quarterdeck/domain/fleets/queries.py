"""The SQL statements of fleets."""

from quarterdeck.store.sql import load

Q = load(__package__)
LISTS = load(__package__, "lists.sql")
