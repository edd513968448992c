"""The statements of webhooks."""

from quarterdeck.store.sql import load

Q = load(__package__)
