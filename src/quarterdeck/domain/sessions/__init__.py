"""Sessions: one live run of an agent. Sessions form trees, and no tree can be overrun.

This room decides who may be admitted (`rules.admit`, over every bound of the quota table at once), what a session's
states are (`rules.SESSION`), and what ends together: a session takes its whole subtree with it.

Every admission and every ending of a zone is decided under that zone's row lock, so the counts it judges by are exact
with any number of callers, lanes and replicas. The counts live in a narrow table of their own, one row per thing that
is bounded, and are moved in the same transaction as the sessions they count.

*Live* means active or suspended, and not expired. A session past its `expires_at` that no sweep has reached counts as
gone everywhere: it reads as terminated, holds no key, parents nothing, and is subtracted from a bound that would
refuse.

How it fails. A refusal names its bound, its limit, how much is used and what would free it. A spawn repeated with its
Idempotency-Key gives the same session while that lives, also after a connection was cut between commit and answer.
A sweep that is late delays events, never truth.
"""
