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


def signed(message_id: str, at: Millis, body: bytes, secrets: Sequence[str]) -> list[tuple[str, str]]:
    """The three headers, for the newest secret first."""
    moment, text = datetime.fromtimestamp(at // SECOND, UTC), body.decode()
    signatures = [Webhook(secret).sign(message_id, moment, text) for secret in secrets]
    return [
        ("webhook-id", message_id),
        ("webhook-timestamp", str(at // SECOND)),
        ("webhook-signature", " ".join(signatures)),
    ]


Secrets = Callable[[str, str, int], str]
"""The secret of a service, by its zone, its id and the number of its secret."""
PREFIX = "whsec_"


def secrets_from(root: bytes) -> Secrets:
    """Secrets under a root, which must be as hard to guess as a key and used for nothing else."""

    def secret(zone_id: str, service_id: str, number: int) -> str:
        # As JSON, so that no two triples are spelt alike wherever one name ends and the next begins.
        told = msgspec.json.encode((zone_id, service_id, number))
        return PREFIX + base64.b64encode(hmac.digest(root, told, sha256)).decode()

    return secret
