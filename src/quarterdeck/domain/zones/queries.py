"""SQL statements for zones."""

from quarterdeck.store.sql import load

Q = load(__package__)
