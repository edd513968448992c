"""The page on the SDK names every call there is, and no other; its programs can be read by Python."""

from __future__ import annotations

import inspect
import re

import pytest

from quarterdeck.sdk import Quarterdeck
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `qd\.(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))


@pytest.mark.parametrize("noun", inspect.get_annotations(Quarterdeck))
def test_every_call_of_a_noun_is_named_and_no_other(noun: str) -> None:
    qd = Quarterdeck.connect("http://127.0.0.1:1", "t")
    calls = {name for name, _ in inspect.getmembers(getattr(qd, noun), callable) if not name.startswith("_")}
    assert set(re.findall(r"`(\w+)`", ROWS[noun])) == calls


def test_the_programs_on_the_page_are_programs() -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert len(programs) == 2
    for program in programs:
        compile(program, "docs/sdk.md", "exec")
