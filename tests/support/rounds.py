"""How often a race is repeated, and how long the chaos tests run. A race condition may show only once in a thousand
runs, so `make soak` repeats more."""

from __future__ import annotations

import os
import secrets

ROUNDS = int(os.environ.get("QD_ROUNDS") or 2)
SOAK_SECONDS = float(os.environ.get("QD_SOAK_SECONDS") or 0)
"""How long `tests/chaos/test_session_plane.py` repeats its round. By default it runs one round."""
SEED = os.environ.get("QD_SEED") or (secrets.token_hex(4) if SOAK_SECONDS else "1")
"""The seed of its clients and faults. Each soak run draws a new one and prints it."""
