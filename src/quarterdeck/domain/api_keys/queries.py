"""The statements of keys."""

from quarterdeck.store.sql import load

Q = load(__package__)
