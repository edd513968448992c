"""The SQL statements of invocations, from `queries.sql`."""

from quarterdeck.store.sql import load

Q = load(__package__)
