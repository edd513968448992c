"""The SQL statements of delegations, from `queries.sql`."""

from quarterdeck.store.sql import load

Q = load(__package__)
