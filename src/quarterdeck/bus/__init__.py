"""Adapters for systems outside the database: `redis` today.

Nothing here decides anything: the database does. The engine calls an adapter only after the commit, so every request
is answered in the same way whether the other system is up, down or wiped.
"""
