"""Standard Webhooks (standardwebhooks.com): headers by which a receiver verifies that this server is the sender.

The message id is the same for every attempt, so that the receiver can detect duplicates. The timestamp is that of the
attempt, so that a replayed request is recognized. The signature covers both and the body. While a secret is rotated,
both secrets sign: the receiver can switch to the new one at any time.
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
    """The three headers. Signatures are in the order of `secrets`: newest first."""
    timestamp, text = datetime.fromtimestamp(at // SECOND, UTC), body.decode()
    signatures = [Webhook(secret).sign(message_id, timestamp, text) for secret in secrets]
    return [
        ("webhook-id", message_id),
        ("webhook-timestamp", str(at // SECOND)),
        ("webhook-signature", " ".join(signatures)),
    ]


SecretDeriver = Callable[[str, str, int], str]
"""(zone id, service id, number of the secret) → secret"""
WHSEC_PREFIX = "whsec_"


def secret_deriver(root: bytes) -> SecretDeriver:
    """Derive secrets from `root`, which must have the strength of a key and no other use."""

    def derive(zone_id: str, service_id: str, number: int) -> str:
        # As JSON, so that no two triples have the same encoding.
        message = msgspec.json.encode((zone_id, service_id, number))
        return WHSEC_PREFIX + base64.b64encode(hmac.digest(root, message, sha256)).decode()

    return derive
