"""Zones: the tenants. Every row belongs to exactly one zone.

This component decides which zones exist, which limits each zone has, and which role a subject has in a zone. The row
of a zone is a lock: every decision that depends on a count within the zone is made while that row is locked
(`docs/LOCKS.md`).

Limits have three layers: platform defaults, the overrides of a zone, and platform ceilings. Only the overrides are
stored. `rules.limits` computes the limits when they are needed, so a release that changes a default changes
it for every zone without an override.

A frozen zone admits no new sessions; nothing else changes. It can be thawed. Stopping a zone (`domain.sessions`)
freezes it and terminates all its sessions. A deleted zone has ended: its row and its history stay readable, and its id
is never reused.

Errors. An unknown limit, or one above its ceiling, is refused (400), and no part of the request is stored. For a zone
that does not exist, callers with access to all zones get 404 `zone_not_found`. All other callers get 403
`zone_mismatch` for every zone except their own, so that they cannot learn which zones exist. A zone whose row is
locked by another transaction is skipped (`BUSY`), and the lane tries again.
"""
