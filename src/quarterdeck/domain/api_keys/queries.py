"""SQL statements for API keys."""

from quarterdeck.store.sql import load

Q = load(__package__)
