"""The statements of upkeep."""

from quarterdeck.store.sql import load

Q = load(__package__)
