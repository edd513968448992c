"""Authentication and scope checks.

This package determines two things about a request: who the caller is (`Authenticator.authenticate`), and whether that
caller has the route's scope in the route's zone (`Authenticator.check_access`). Authentication is always on: there is
no anonymous mode and no debug key. The checks run in a fixed order, so that a caller can fix one problem at a time:

    401 missing_token → 401 invalid_token → 403 missing_scope → 403 zone_mismatch

**Credentials.** A request has either a bearer token or an API key. A request with both, or with two of one kind, gets
401 invalid_token, because a proxy in front of the server may have checked only one of them.

A bearer token is `Authorization: Bearer <JWT>` of at most 8 KiB: three segments of canonical base64url. Its claims:

- `iss` and `aud` name the issuer. `zone_id` (a path id), `sub` and `client_id` must not be empty.
- `exp` is required, `nbf` and `iat` are checked, all with a leeway of a few seconds.
- `scope` is split at spaces, and each scope is compared as a whole word.
- `sid`, `agent_session_id`, `agent_id` and `delegation_edge_id` may be absent, null or empty, with the same meaning.
- Names have at most 255 characters and no control characters.
- `role` (the bearer's role in its zone), `attempt` (the attempt that an agent's token was issued for) and `agent_since`
  (when that agent was registered) are ignored if they are malformed, because other issuers may use these names
  differently.

Checks that need no key run before the signature check. So a token that has expired or is from an untrusted
issuer costs neither a signature check nor a request to an issuer.

An API key is `X-API-Key: qd_<zone>.<id>.<secret>` (`core.api_key`). The component `api_keys` looks it up by zone and
id, compares digests in constant time, and returns its caller. This happens for every request and nothing is cached, so
all replicas refuse a key once its revocation is committed. Unknown, wrong, revoked and expired keys get the same
error. A key is valid in its zone only: it never has the scope `quarterdeck.admin`.

**Algorithms** are determined by the type of the key, never by the token: P-256 means ES256, Ed25519 means EdDSA, RSA
with 2048 to 8192 bits means RS256. Nothing else is supported. The token's `alg` must equal the key's algorithm: HS256
over a published public key, `none`, or RS256 against a P-256 key are refused. A header with `crit` is refused.
`jwk`, `jku`, `x5u` and `x5c` are ignored: a token must not supply its own key.

**Trusted issuers** (`issuers`). An issuer is a name and its own keys. `iss` selects the issuer, `aud` must name the
same issuer, and the keys of one issuer are never tried on another issuer's token. ISSUER_URL and QD_ADMIN_ISSUER may
be equal.

| issuer          | name (iss = aud)               | keys                             | may grant quarterdeck.admin   |
|-----------------|--------------------------------|----------------------------------|-------------------------------|
| local issuer    | `urn:quarterdeck:<thumbprint>` | its key file, never fetched      | yes                           |
| ISSUER_URL      | ISSUER_URL                     | JWKS at STS_URL or at ISSUER_URL | only if it is QD_ADMIN_ISSUER |
| QD_ADMIN_ISSUER | QD_ADMIN_ISSUER                | JWKS at QD_ADMIN_ISSUER          | yes                           |

The local issuer stays trusted when ISSUER_URL is set, because the CLI on the server's machine needs it. This does
not weaken security: a process that can read the signing key (mode 0600, stored next to the database or its password)
can already act as the server. An external issuer cannot issue tokens in the local issuer's name, because its keys are
not tried on that name. If the local issuer is opened under the name of ISSUER_URL, the `kid` decides: a token whose
`kid` is the local thumbprint is checked only with the local key, and every other token only with the fetched keys. Only
the local key may then grant `quarterdeck.admin`, unless ISSUER_URL is also QD_ADMIN_ISSUER. If an issuer may not grant
that scope, it is removed from the caller, so that no later check can find it. To refuse local tokens, build the
`Authenticator` without a local issuer.

**Fetched keys** (`jwks_cache`) are cached per URL. The URL contains the token's zone, so the keys of a zone can sign
for that zone only. A key set is fresh for 10 minutes; a `kid` that is not in it causes one more fetch. A URL is fetched
at most once in 10 seconds, and all requests that wait for it share the fetch. A forger can choose the zone of a token,
so fetches for unknown zones are rate-limited, and a set that has verified a token is evicted last.

| failure                                                    | response                                            |
|------------------------------------------------------------|-----------------------------------------------------|
| issuer unreachable, slow, redirecting, or invalid response | keys up to an hour old, or 503 issuer_unavailable   |
| 404 or 410, or a set without keys                          | the issuer has no keys: 401 invalid_token           |
| `kid` still unknown after a fetch                          | 401 invalid_token                                   |
| rate limit for unknown zones reached                       | 503 issuer_unavailable; known zones are unaffected  |

The status is 503, not 401, because the token may be valid: the client should keep it and retry after Retry-After. A
token is never accepted unchecked. Proxy settings in the environment are ignored, and redirects are not followed. A
plain `http://` issuer is only as safe as the network between it and the server.

**The token cache.** The result for a verified token is cached until its `exp`, under the SHA-256 of the Authorization
header; the token itself is not stored. At most `token_cache_max` tokens are cached; the oldest is evicted first.
Refusals are not cached. The drawback: when an issuer withdraws a key, its tokens are refused within 10 minutes (an hour
if the issuer is then unreachable), but a token that is already cached stays valid until its `exp`. So tokens should be
short-lived. Each operation checks, in its transaction, that the session that the token names is still live.

No token, key, or part of one appears in a log line or an error text.
"""

from __future__ import annotations

from quarterdeck.http.auth.authenticator import Authenticator, Credentials
from quarterdeck.http.auth.local_issuer import LocalIssuer
from quarterdeck.http.auth.model import AuthSettings, Grant
from quarterdeck.http.auth.secret_files import KeyFileError

__all__ = ["AuthSettings", "Authenticator", "Credentials", "Grant", "KeyFileError", "LocalIssuer"]
