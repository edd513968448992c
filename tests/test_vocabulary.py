"""Plain words only: names, comments, docstrings, messages and Markdown are checked for private language.

`docs/glossary.md` has the words of this project. An exception has a count for each file, which may only fall. One that
is no longer needed fails the test. `src` has none.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.source import ROOT, Module, parse_modules, split_identifier

CODE = ("src", "tests", "bench", "examples", "tools")
BANNED_IN_IDENTIFIERS = frozenset(
    {
        *("told", "tell", "tells", "telling", "teller", "said", "saying", "ask", "asks", "asker", "asking", "wanted"),
        *("heard", "hearing", "hears", "whoever", "nobody", "somebody", "keel", "desk", "house", "laid", "lives"),
        *("forgetting", "forgotten", "mend", "mends", "mended", "chance", "stranger", "everywhere", "anew", "hungry"),
        *("errand", "errands", "duty", "duties", "beater", "beating", "lookout", "crew", "lending", "stationing"),
        *("asleep", "awake", "shelf", "tale", "hollow", "labour", "beside"),
    }
)
PUBLIC_IDENTIFIERS: dict[str, str] = {}
"""Wire fields, SDK names and names of other libraries, each with its reason."""
BANNED_IN_PROSE = re.compile(
    r"\b(whoever|whomever|whosoever|nobody|somebody|told|tells of|tell of|mends?|mended|goes on|go on|went on|lets go"
    r"|let go of|is over|are over|was over|heard of|hears of|anew|keel|desk|the house|speaks for|in its turn|of late"
    r"|all the same|thereby|whereby|stands for|stood still)\b",
    re.IGNORECASE,
)
GERUNDS_THAT_ARE_NOUNS = frozenset(
    {
        *("routing", "paging", "decoding", "logging", "signing", "ranking", "rendering", "quoting", "batching"),
        *("keyring", "matching", "tampering", "nothing"),
    }
)
"""Established nouns of the field. Any other module name in -ing names an activity instead of what the module holds."""
IDENTIFIER_EXCEPTIONS: dict[str, int] = {}
PROSE_EXCEPTIONS: dict[str, int] = {}


def test_identifiers_use_plain_words() -> None:
    found = Counter(
        module.path
        for module in parse_modules(*CODE)
        for name in identifiers(module)
        if name not in PUBLIC_IDENTIFIERS and BANNED_IN_IDENTIFIERS.intersection(split_identifier(name))
    )
    check_exceptions(found, IDENTIFIER_EXCEPTIONS)


def test_modules_are_named_by_nouns() -> None:
    names = {module.path: module.path.rsplit("/", 1)[1].removesuffix(".py") for module in parse_modules(*CODE)}
    found = [
        path
        for path, name in names.items()
        if name.endswith("ing") and name.rsplit("_", 1)[-1] not in GERUNDS_THAT_ARE_NOUNS and "/test_" not in path
    ]
    assert not found, f"name a module by what it holds: {found}"


def test_prose_uses_plain_words() -> None:
    found = Counter(path for path, text in prose() for _ in BANNED_IN_PROSE.finditer(text))
    check_exceptions(found, PROSE_EXCEPTIONS)


def test_src_has_no_exceptions() -> None:
    assert not [path for path in (*IDENTIFIER_EXCEPTIONS, *PROSE_EXCEPTIONS) if path.startswith("src/")]


@pytest.mark.parametrize("text", ["Whoever asks is told.", "a sweep mends it", "The attempt IS OVER", "heard of it"])
def test_banned_words_are_found(text: str) -> None:
    assert BANNED_IN_PROSE.search(text)


def check_exceptions(found: Counter[str], allowed: dict[str, int]) -> None:
    worse = {path: count for path, count in found.items() if count > allowed.get(path, 0)}
    assert not worse, f"use plain words (docs/glossary.md): {worse}"
    unused = {path: count for path, count in allowed.items() if found[path] < count}
    assert not unused, f"lower or remove these exceptions: {unused}"


def identifiers(module: Module) -> Iterator[str]:
    """Each name where it is defined: counting its uses would only repeat it."""
    for node in module.walk():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def prose() -> Iterator[tuple[str, str]]:
    """Comments, strings that are sentences, SQL comments, and Markdown without code blocks."""
    for module in parse_modules(*CODE):
        if module.path == "tests/test_vocabulary.py":
            continue
        for comment in module.comments().values():
            yield module.path, comment
        for node in module.walk():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield module.path, node.value
    for folder in CODE:
        for file in sorted((ROOT / folder).rglob("*.sql")):
            lines = file.read_text(encoding="utf-8").splitlines()
            comments = [line for line in lines if line.lstrip().startswith("--")]
            yield file.relative_to(ROOT).as_posix(), "\n".join(comments)
    for file in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        yield (
            file.relative_to(ROOT).as_posix(),
            re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL),
        )
