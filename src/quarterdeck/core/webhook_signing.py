"""Signature headers as in Standard Webhooks (standardwebhooks.com), and the secrets that sign outgoing requests.

With the headers a receiver verifies that this server is the sender. The message id is the same for every attempt, so
that the receiver can detect duplicates. The timestamp is that of the attempt, so that the receiver can detect a
replayed request. The signature covers both and the body. While a secret is rotated, the headers contain a signature by
the old secret and one by the new secret, so that the receiver can switch at any time.
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
    """The three headers. `at` is the time of the attempt. The signatures are in the order of `secrets`."""
    timestamp, text = datetime.fromtimestamp(at // SECOND, UTC), body.decode()
    signatures = [Webhook(secret).sign(message_id, timestamp, text) for secret in secrets]
    return [
        ("webhook-id", message_id),
        ("webhook-timestamp", str(at // SECOND)),
        ("webhook-signature", " ".join(signatures)),
    ]


SecretDeriver = Callable[[str, str, int], str]
"""(zone id, id of the service or webhook, number of the secret) → secret"""
WHSEC_PREFIX = "whsec_"


def secret_deriver(root: bytes) -> SecretDeriver:
    """A function that derives secrets from `root`, which must have the strength of a key and no other use."""

    def derive(zone_id: str, receiver_id: str, secret_number: int) -> str:
        # As JSON, so that no two triples have the same encoding.
        message = msgspec.json.encode((zone_id, receiver_id, secret_number))
        return WHSEC_PREFIX + base64.b64encode(hmac.digest(root, message, sha256)).decode()

    return derive
