"""Adapters for systems outside the database. At present there is only `redis`.

Adapters make no decisions. The engine calls an adapter only after the commit, so every request gets the same response
whether the other system is up, down or wiped.
"""
