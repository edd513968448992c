"""docs/sdk.md lists exactly the SDK's calls, and the Python programs in the docs are valid."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable

import pytest

from quarterdeck.sdk import Quarterdeck
from tests.support.source import ROOT

PAGE = (ROOT / "docs" / "sdk.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `qd\.(\w+)`(?:, for workers)? \| (.*) \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("noun", inspect.get_annotations(Quarterdeck))
def test_every_call_of_a_resource_is_documented(noun: str) -> None:
    qd = Quarterdeck.connect("http://127.0.0.1:1", "t")
    calls = {name for name, _ in inspect.getmembers(getattr(qd, noun), callable) if not name.startswith("_")}
    documented = [name for row_noun, row in ROWS if row_noun == noun for name in re.findall(r"`(\w+)`", row)]
    assert sorted(documented) == sorted(calls)


@pytest.mark.parametrize(("page", "number"), [("sdk", 3), ("worker", 1), ("embedded", 1), ("testing", 1)])
def test_documented_programs_compile(page: str, number: int) -> None:
    programs = python_programs(page)
    assert len(programs) == number
    for program in programs:
        compile(program, f"docs/{page}.md", "exec")


async def test_documented_test_passes() -> None:
    [program] = python_programs("testing")
    namespace: dict[str, Callable[[], Awaitable[None]]] = {}
    exec(program, namespace)
    [name] = [name for name in namespace if name.startswith("test_")]
    await namespace[name]()


def python_programs(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
