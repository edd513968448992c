"""SQL statements of sessions."""

from quarterdeck.store.sql import load

Q = load(__package__)
