"""The engine's own statements."""

from quarterdeck.store.sql import load

Q = load(__package__)
