"""The SQL statements of the engine."""

from quarterdeck.store.sql import load

Q = load(__package__)
