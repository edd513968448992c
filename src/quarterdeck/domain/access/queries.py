"""SQL statements for the checks of callers."""

from quarterdeck.store.sql import load

Q = load(__package__)
