"""Who is asking, and may they.

This package decides two things about a request: who the caller is (`identify`), and whether that caller holds
the route's scope in the route's zone (`check`). Authentication is always on; there is no anonymous mode and
no debug key. The answers come in a fixed order, so that a caller mends one thing at a time:

    401 missing_token → 401 invalid_token → 403 missing_scope → 403 zone_mismatch

**What a credential is.** Either a bearer token or an API key; a request that shows both, or two of one kind, is
401 invalid_token, because a proxy before us might have judged the other one.

A bearer token is `Authorization: Bearer <JWT>` of at most 8 KiB: three segments, base64url in its
one canonical spelling. Claims: `iss` and `aud` name the issuer; `zone_id` (of the form of a path id), `sub`
and `client_id` are not empty; `exp` is required, `nbf` and `iat` are honoured, all with a leeway of a few
seconds; `scope` is split at spaces and matched whole; `sid`, `agent_session_id`, `agent_id` and
`delegation_edge_id` may be absent, null or empty, which all mean the same. Names are at most 255 characters
and hold no control characters. `role` (what the issuer says the bearer is in its zone) and `attempt` (the attempt
an agent's token was made for) are ignored where they are not of their form: other issuers mean other things by
these words. What needs no key is judged before the signature: an expired or foreign
token costs neither a curve operation nor a question to its issuer.

An API key is `X-API-Key: qd_<zone>.<id>.<secret>` (`core.apikey`). What it says is not believed but asked: the room of
keys finds it by zone and id, compares digests in constant time, and says who it is. That happens for every request and
is remembered by nobody, so a key is refused on every replica from the commit of its revocation on. Unknown, wrong,
revoked and expired are one refusal in one sentence. A key is for its zone: it never holds `quarterdeck.admin`.

**Algorithms** follow from the type of the key, never from the token: P-256 means ES256, Ed25519 means
EdDSA, RSA of 2048–8192 bits means RS256, and there is nothing else. The token's `alg` must say the same,
which is all it is read for: HS256 over a published public key, `none`, or RS256 against a P-256 key can
only disagree. A header with `crit` is refused; `jwk`, `jku`, `x5u` and `x5c` are never looked at, for a
token may not bring its own key.

**Whom we believe** (`trust`). Each issuer is a name and its own keys; `iss` picks the issuer, `aud` must
name that same issuer, and no key of one is ever tried on a token of another. ISSUER_URL and QD_ADMIN_ISSUER
may be the same.

| issuer          | name (iss = aud)               | keys                           | quarterdeck.admin  |
|-----------------|--------------------------------|--------------------------------|--------------------|
| the local one   | `urn:quarterdeck:<thumbprint>` | its key file, never fetched    | honoured           |
| ISSUER_URL      | ISSUER_URL                     | JWKS at STS_URL, or else there | see the next row   |
| QD_ADMIN_ISSUER | QD_ADMIN_ISSUER                | JWKS there                     | honoured           |

The local issuer stays believed when ISSUER_URL is set, or the CLI on the server's own machine would be
locked out. That gives nobody anything: whoever can read the signing key (mode 0600, beside the database or
its password) can act as the server already. The reverse holds too: an external issuer cannot speak as the
local one, because its keys are not tried on that name. If the local issuer is opened under ISSUER_URL's
name, the key decides: a token whose `kid` is the local thumbprint is checked with the local key alone,
every other one with the fetched keys alone, and only the former may grant `quarterdeck.admin`. From anyone
who may not grant it, that scope is struck from the caller, so that no later check can meet it. Whoever
wants no local tokens at all builds the `Authenticator` without a local issuer.

**Fetched keys** (`keysets`) are kept per URL, and the URL names the token's zone, so that a zone's keys
sign for that zone only. A set is fresh for 10 minutes; a `kid` that is not in it causes one more question.
Any one URL is asked at most once in 10 seconds, by one request however many wait for it; and because the
zone of a forged token is the forger's to choose, zones not met before are asked for from a bounded
allowance, and never push out more than one set that has proved a token. When things fail:

| what happens                                        | answer                                            |
|-----------------------------------------------------|---------------------------------------------------|
| issuer away, slow, redirecting, or talking nonsense | keys of the last hour, or 503 issuer_unavailable  |
| 404 or 410, or a set without keys                   | the issuer says there are none: 401 invalid_token |
| `kid` still unknown after asking                    | 401 invalid_token                                 |
| allowance for new zones used up                     | 503 issuer_unavailable; known zones go on         |

503 and not 401, because the token may be good and the client should keep it, and try again after
Retry-After. In no case is a token believed unchecked. No proxy of the environment is used and no redirect
followed; a plain `http://` issuer is as safe as the network to it.

**The cache.** A verified token is remembered by the SHA-256 of its header, never by its text, until its
`exp` and not a moment longer; at most `token_cache_max` of them, oldest out first. Refusals are not
remembered. The price: withdrawing a key at its issuer stops new tokens within ten minutes (an hour, if the
issuer then falls silent), but one already verified here runs to its `exp`, so tokens should be short-lived.
Whether the session a token names still lives is not this package's to say: that is asked in the operation's
own transaction, every time.

Nothing here puts a token, a key, or any part of one, into a log line or the text of an error.
"""

from __future__ import annotations

from quarterdeck.http.auth.authenticator import Authenticator, Credentials
from quarterdeck.http.auth.local_issuer import LocalIssuer
from quarterdeck.http.auth.model import AuthSettings, Grant
from quarterdeck.http.auth.secret_files import KeyFileError

__all__ = ["AuthSettings", "Authenticator", "Credentials", "Grant", "KeyFileError", "LocalIssuer"]
