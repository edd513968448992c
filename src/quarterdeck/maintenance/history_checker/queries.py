"""The statements of judging histories."""

from quarterdeck.store.sql import load

Q = load(__package__)
