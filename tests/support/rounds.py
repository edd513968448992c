"""How often a race is run, and how long the plane is attacked. A race that is lost once in a thousand is still lost, so
`make soak` runs many."""

from __future__ import annotations

import os
import secrets

ROUNDS = int(os.environ.get("QD_ROUNDS") or 2)
SOAK_SECONDS = float(os.environ.get("QD_SOAK_SECONDS") or 0)
"""How long `tests/chaos/test_session_plane.py` goes on; by itself, one round."""
SEED = os.environ.get("QD_SEED") or (secrets.token_hex(4) if SOAK_SECONDS else "1")
"""What its clients and its disturbances are drawn from. A soak has another each time, and says which."""
