"""The statements of tasks."""

from quarterdeck.store.sql import load

Q = load(__package__)
