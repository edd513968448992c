"""The SQL statements of webhooks, from `queries.sql`."""

from quarterdeck.store.sql import load

Q = load(__package__)
