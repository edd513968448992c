"""The SQL statements of services, from `queries.sql`."""

from quarterdeck.store.sql import load

Q = load(__package__)
