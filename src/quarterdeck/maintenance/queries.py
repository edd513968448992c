"""The SQL statements of this package."""

from quarterdeck.store.sql import load

Q = load(__package__)
FLEET_QUERIES = load(__package__, "fleets.sql")
