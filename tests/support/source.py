"""The source code as data, for tests that read it instead of running it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "quarterdeck"
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A parsed Python file."""

    path: str
    """Relative to the root of the repository."""
    text: str
    tree: ast.Module

    def functions(self) -> Iterator[tuple[str, Function]]:
        """Yield every function with its dotted name, including nested ones."""
        yield from _functions(self.tree, "")

    def walk(self) -> Iterator[ast.AST]:
        yield from ast.walk(self.tree)

    def comments(self) -> dict[int, str]:
        """Comments by line number."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


@dataclass(frozen=True)
class SqlStatement:
    """One block of a file of statements: from its `-- name:` to the next."""

    path: str
    name: str
    reasons: tuple[str, ...]
    """The comment lines, without the directives for the loader."""
    differs: tuple[str, ...]
    engines: tuple[str, ...]
    body: str


@cache
def parse_modules(*folders: str) -> tuple[Module, ...]:
    """Parse the Python files under these folders of the repository."""
    found = []
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text(encoding="utf-8")
            found.append(Module(file.relative_to(ROOT).as_posix(), text, ast.parse(text)))
    return tuple(found)


def sql_statements() -> list[SqlStatement]:
    return [statement for file in sql_files() for statement in _statements(file)]


def sql_files() -> list[Path]:
    return sorted(SRC.rglob("*.sql"))


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for an attribute chain of plain names, and an empty string otherwise."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


def split_identifier(identifier: str) -> list[str]:
    """`crossZone_reads` is cross, zone, reads."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", identifier)]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{prefix}{child.name}", child
        inner = f"{prefix}{child.name}." if isinstance(child, Function | ast.ClassDef) else prefix
        yield from _functions(child, inner)


def _statements(file: Path) -> Iterator[SqlStatement]:
    path = file.relative_to(ROOT).as_posix()
    head, *blocks = re.split(r"^-- name:", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert not _without_comments(head), f"{path} opens with a statement that has no name"
    for block in blocks:
        name, *lines = block.splitlines()
        comments = [line.strip()[2:].strip() for line in lines if line.strip().startswith("--")]
        yield SqlStatement(
            path=path,
            name=name.strip(),
            reasons=tuple(line for line in comments if not line.startswith(("engine:", "differs:"))),
            differs=tuple(line for line in comments if line.startswith("differs:")),
            engines=tuple(line.split(":")[1].strip() for line in comments if line.startswith("engine:")),
            body=_without_comments("\n".join(lines)),
        )


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.strip().startswith("--")).strip()
