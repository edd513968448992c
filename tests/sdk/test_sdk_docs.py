"""The page on the SDK names every call there is, and no other; programs on the pages can be read by Python."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable

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


@pytest.mark.parametrize(("page", "number"), [("sdk", 2), ("worker", 1), ("embedded", 1), ("testing", 1)])
def test_the_programs_on_the_pages_are_programs(page: str, number: int) -> None:
    programs = programs_of(page)
    assert len(programs) == number
    for program in programs:
        compile(program, f"docs/{page}.md", "exec")


async def test_the_test_on_the_page_on_testing_passes() -> None:
    [program] = programs_of("testing")
    found: dict[str, Callable[[], Awaitable[None]]] = {}
    exec(program, found)
    await found["test_a_task_that_failed_is_tried_again_after_its_backoff"]()


def programs_of(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
