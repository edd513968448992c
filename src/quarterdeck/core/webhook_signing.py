"""Signature headers of outgoing requests (standardwebhooks.com), and the secrets that sign these requests.

A receiver uses the headers to verify that this server sent the request. The message id is the same for every attempt,
so that the receiver can detect duplicates. The timestamp is the time of the attempt, so that the receiver can detect a
replayed request. The signature covers the message id, the timestamp and the body. While a secret is being rotated, the
headers contain one signature with the old secret and one with the new secret, so that the receiver can switch at any
time.
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


def signature_headers(
    message_id: str, attempted_at: Millis, body: bytes, secrets: Sequence[str]
) -> list[tuple[str, str]]:
    """The three signature headers, with one signature per secret, in the same order."""
    timestamp, text = datetime.fromtimestamp(attempted_at // SECOND, UTC), body.decode()
    signatures = [Webhook(secret).sign(message_id, timestamp, text) for secret in secrets]
    return [
        ("webhook-id", message_id),
        ("webhook-timestamp", str(attempted_at // SECOND)),
        ("webhook-signature", " ".join(signatures)),
    ]


SecretDeriver = Callable[[str, str, int], str]
"""(zone id, id of the service or webhook, number of the secret) → secret"""
WHSEC_PREFIX = "whsec_"


def secret_deriver(root: bytes) -> SecretDeriver:
    """Return a function that derives secrets from `root`, a cryptographic key that must have no other use."""

    def derive(zone_id: str, receiver_id: str, secret_number: int) -> str:
        # As JSON, so that no two triples have the same encoding.
        message = msgspec.json.encode((zone_id, receiver_id, secret_number))
        return WHSEC_PREFIX + base64.b64encode(hmac.digest(root, message, sha256)).decode()

    return derive
