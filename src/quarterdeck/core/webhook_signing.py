"""Standard Webhooks (standardwebhooks.com): the headers by which whoever is called knows that it was us.

The message's id stays the same however often it is sent, so that the receiver can tell a repetition; the time is that
of the sending, so that an old recording is recognised as one; the signature is over both and the body. While a secret
is being replaced there are two, and a signature for each: the receiver takes either, and changes over when it likes.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256

import msgspec
from standardwebhooks import Webhook

from quarterdeck.core.clock import SECOND, Millis


def signature_headers(message_id: str, at: Millis, body: bytes, secrets: Sequence[str]) -> list[tuple[str, str]]:
    """The three headers, for the newest secret first."""
    timestamp, text = datetime.fromtimestamp(at // SECOND, UTC), body.decode()
    signatures = [Webhook(secret).sign(message_id, timestamp, text) for secret in secrets]
    return [
        ("webhook-id", message_id),
        ("webhook-timestamp", str(at // SECOND)),
        ("webhook-signature", " ".join(signatures)),
    ]


SecretDeriver = Callable[[str, str, int], str]
"""The secret of a service, by its zone, its id and the number of its secret."""
WHSEC_PREFIX = "whsec_"


def secret_deriver(root: bytes) -> SecretDeriver:
    """Secrets under a root, which must be as hard to guess as a key and used for nothing else."""

    def derive(zone_id: str, service_id: str, number: int) -> str:
        # As JSON, so that no two triples are spelt alike wherever one name ends and the next begins.
        message = msgspec.json.encode((zone_id, service_id, number))
        return WHSEC_PREFIX + base64.b64encode(hmac.digest(root, message, sha256)).decode()

    return derive
