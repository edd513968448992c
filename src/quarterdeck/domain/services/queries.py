"""The statements of services."""

from quarterdeck.store.sql import load

Q = load(__package__)
