"""The SQL statements of this package."""

from quarterdeck.store.sql import load

Q = load(__package__)
