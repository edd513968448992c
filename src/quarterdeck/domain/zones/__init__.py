"""Zones: the tenants. Every row belongs to exactly one zone.

This component decides which zones exist, which limits hold in each, and which role a subject has in a zone. The row of
a zone is a lock: everything that is counted in a zone is decided under it (`docs/LOCKS.md`).

Limits have three layers: platform defaults, the overrides of a zone, and platform ceilings for the overrides. An
override is stored as it was given. `rules.effective_limits` computes the limits from it each time, so a release that
changes a default changes it for every zone without an override.

A frozen zone admits no new sessions; nothing else changes. It can be thawed. Stopping a zone (`domain.sessions`)
freezes it and terminates all its sessions. A deleted zone has ended: its row and its history stay readable, and its id
is never reused.

How it fails. An unknown limit, or one above its ceiling, is refused (400), and nothing of the request is stored. A
missing zone is 404 `zone_not_found` for callers that may cross zones and 403 `zone_mismatch` for all others, so that
they cannot learn which zones exist. A zone whose row is locked by another transaction is skipped (`BUSY`): the lane
tries again.
"""
