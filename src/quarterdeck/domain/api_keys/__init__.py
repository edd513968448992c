"""API keys: credentials for programs without a token issuer.

A key acts for one application in one zone, with its scopes, until it is revoked, expires, or the session it is bound to
ends. This component decides which keys exist, and authenticates presented keys.

The secret appears once, in the response that creates the key. The database stores a digest (`core.api_key` defines the
format of a key, and explains why a plain digest is enough). Every request with a key runs `authenticate_keys`, batched
with concurrent requests. The result is not cached: after the commit of a revocation, no replica accepts the key. A key
that is bound to a session is valid only while that session is live. The operation that uses the key checks this in its
own transaction.

A zone has at most `KEYS_MAX` live keys. They are counted under the zone's lock, so the limit is exact with any number
of callers and replicas. Revoking locks only the row of the key: a busy zone must not delay it. When a zone ends, its
live keys are revoked in the same transaction.

How it fails. Unknown, wrong, revoked and expired keys get the same error, which does not reveal the reason. A key
cannot have the scope `quarterdeck.admin`, which crosses zones: a request for it is refused, and it is ignored if a
stored row has it. Revoking a revoked key succeeds and changes nothing. If the response with the secret is lost, the
secret is lost: revoke the key and create another.
"""
