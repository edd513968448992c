"""Adapters for systems outside the database: at present only `redis`.

Adapters decide nothing: the database does. The engine calls an adapter only after the commit, so every request gets the
same response whether the other system is up, down or wiped.
"""
