"""How often a race is run. A race that is lost once in a thousand is still lost, so `make soak` runs many."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("QD_ROUNDS") or 3)
