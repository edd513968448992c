"""The secrets by which a pushed invocation is signed: derived, never stored.

A service that is pushed to must be able to tell our calls from anybody's, so each has a secret of its own (Standard
Webhooks: `whsec_` and base64). It follows from a root that only the server has, and from the service's zone, id and
number; the number rises when the secret is rotated. So whoever copies the database has copied no secret, replicas that
share a signing key agree without asking each other, and there is nothing to encrypt. The price: with another signing
key every secret is another, and has to be shown again by rotating it.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from hashlib import sha256

import msgspec

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
