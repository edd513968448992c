"""The statements of invocations."""

from quarterdeck.store.sql import load

Q = load(__package__)
