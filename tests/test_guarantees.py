"""docs/guarantees.md names the tests of each guarantee; the tests must exist."""

from __future__ import annotations

import re
from itertools import pairwise

from tests.support.source import ROOT

TEXT = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_test_named_by_the_guarantees_exists() -> None:
    named = NAMED.findall(TEXT)
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert len(named) > 200
    assert not missing


def test_every_guarantee_names_a_test() -> None:
    paragraphs = TEXT.split("\n\n")
    without_test = [
        guarantee
        for guarantee, below in pairwise([*paragraphs, ""])
        if guarantee.startswith("**") and not NAMED.match(below.removeprefix("- "))
    ]
    assert not without_test
