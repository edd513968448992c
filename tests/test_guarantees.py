"""docs/guarantees.md names a test for each promise; the tests must exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_named_by_the_guarantees_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "guarantees.md").read_text())
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert len(named) > 20
    assert not missing
