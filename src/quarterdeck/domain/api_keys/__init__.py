"""API keys: credentials for programs without a token issuer.

A key acts for one application in one zone, with a fixed set of scopes. It is valid until it is revoked, it expires, or
the session that it is bound to ends. This component decides which keys exist, and authenticates presented keys.

The secret appears once, in the response that creates the key. The database stores a digest (`core.api_key` defines the
format of a key, and explains why a plain digest is enough). Every request with a key runs `authenticate_keys`, batched
with concurrent requests. The result is not cached, so no replica accepts a key once its revocation is committed. The
operation that a request calls checks, in its transaction, that the session of a bound key is still live.

A zone has at most `KEYS_MAX` live keys. They are counted under the zone's lock, so the limit is exact with any number
of callers and replicas. A revocation locks only the key's row, so that a busy zone does not delay it. When a zone
ends, its live keys are revoked in the same transaction.

How it fails. Unknown, wrong, revoked and expired keys get the same error, which does not reveal the reason. A key
cannot have the scope `quarterdeck.admin`, which is valid in all zones: creating such a key is refused, and the scope is
ignored in a stored row. Revoking a revoked key succeeds and changes nothing. If the response with the secret is lost,
the secret cannot be recovered: revoke the key and create another.
"""
