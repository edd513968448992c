"""SQL statements for the logs of tasks."""

from quarterdeck.store.sql import load

Q = load(__package__)
