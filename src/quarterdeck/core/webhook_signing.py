"""Standard Webhooks (standardwebhooks.com): the headers by which whoever is called knows that it was us.

The message's id stays the same however often it is sent, so that the receiver can tell a repetition; the time is that
of the sending, so that an old recording is recognised as one; the signature is over both and the body. While a secret
is being replaced there are two, and a signature for each: the receiver takes either, and changes over when it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

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
