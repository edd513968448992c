"""API keys: how a program without an issuer says who it is.

A key speaks for one application in one zone, with the scopes it was given, until it is revoked, it expires, or the
session it is bound to ends. This room decides which keys there are and whose a key is that somebody shows.

The secret is shown once, in the answer that makes the key; what is stored is a digest (`core.apikey` has the form of a
key, and why that digest is enough). Every request with a key asks `find`, gathered with whoever else asks, and nobody
remembers the answer: from the commit of a revocation on, no replica lets the key in. A key that is bound to a session
is good only while that session lives, which the operation it is used for finds out in its own transaction.

A zone has at most `KEYS_MAX` live keys. That is counted under the zone's lock, which everything that is counted in a
zone is decided under, so it is exact with any number of callers and replicas. Revoking takes the key's own row and not
the zone's lock: a busy zone must not delay it. When a zone ends, its keys are revoked in the same transaction.

How it fails. A key that is unknown, wrong, revoked or expired is refused in one sentence that tells none of these
apart. `quarterdeck.admin` is no scope of a key, because that crosses zones; it is refused when asked for, and struck
out when read, should it ever stand in a row. Revoking what is revoked succeeds and moves nothing. If the answer that
showed a secret was lost, so is the secret: revoke that key and make another.
"""
