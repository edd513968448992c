"""The statements of delegations."""

from quarterdeck.store.sql import load

Q = load(__package__)
