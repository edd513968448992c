"""Zones: the tenant. Everything belongs to exactly one.

This room decides which zones there are, what limits hold in each, and who may act in a zone at this moment: the row of
a zone is the lock under which everything that is counted in it is decided (`docs/LOCKS.md`).

Limits come in three layers: platform defaults, a zone's own overrides, and platform ceilings that no override may pass.
An override is stored as it was given; the limits in force are computed by `rules.in_force` each time, so a release
that moves a default moves it for every zone that did not override it.

A zone can be frozen, which stops every admission to it and nothing else, and thawed. Stopping it (`domain.sessions`)
freezes it and ends every session in it. A zone that is deleted has ended for good: its row stays, what happened in it
can be read, and its id is never given to another tenant.

How it fails. An unknown limit or one beyond its ceiling is refused whole (400) and nothing is stored. A zone that does
not exist is 404 `zone_not_found` for whoever may cross zones, and 403 `zone_mismatch` for everybody else, so nobody
learns which zones there are. A zone whose row is locked by another transaction is passed over (`BUSY`), not waited for.
"""
