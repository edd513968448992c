"""What was meant by a name that nobody knows: the fields there are where it stands, and the one that is nearest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import msgspec
from msgspec.inspect import (
    CollectionType,
    CustomType,
    DictType,
    Field,
    Metadata,
    StructType,
    Type,
    UnionType,
    type_info,
)

UNKNOWN = "Object contains unknown field `"
"""How msgspec begins to say that there is none of a name."""
SHOWN_MAX = 100
"""Characters of a name that are said again: whoever sent it may have sent a book."""
NAMES_MAX = 30
_STEPS = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


def unknown_name(complaint: str) -> str | None:
    """The name that a complaint of msgspec is about, without the place that may follow; None if it is about another
    matter."""
    if not complaint.startswith(UNKNOWN):
        return None
    return complaint.removeprefix(UNKNOWN).removesuffix("`")


def sentence(thing: str, name: str, known: Sequence[str]) -> str:
    said = f"There is no {thing} `{name[:SHOWN_MAX]}`"
    folded = {_folded(each): each for each in known}
    if near := get_close_matches(_folded(name[:SHOWN_MAX]), folded, n=1):
        return f"{said}; `{_spelt(folded[near[0]])}` may be meant."
    if not known:
        return f"{said}, nor any other."
    there = ", ".join(f"`{_spelt(each)}`" for each in known[:NAMES_MAX])
    return f"{said}. There {'are' if len(known) > 1 else 'is'} {there}{', …' if known[NAMES_MAX:] else ''}."


def names_at(kind: type[msgspec.Struct], path: str) -> list[str]:
    """The fields of whatever stands at a path within a document of this type, as they are spelt outside."""
    found: list[Type] = [*_parts(type_info(kind))]
    for step in _STEPS.findall(path.split("`")[0]):
        found = [part for each in found for part in _within(each, step)]
    return [field.encode_name for each in found for field in _fields(each)]


def _within(kind: Type, step: str) -> Iterator[Type]:
    if isinstance(kind, CollectionType) and step.startswith("["):
        yield from _parts(kind.item_type)
    elif isinstance(kind, DictType) and step.startswith("["):
        yield from _parts(kind.value_type)
    else:
        for field in _fields(kind):
            if field.encode_name == step:
                yield from _parts(field.type)


def _parts(kind: Type) -> Iterator[Type]:
    if isinstance(kind, Metadata):
        yield from _parts(kind.type)
    elif isinstance(kind, UnionType):
        for each in kind.types:
            yield from _parts(each)
    elif not isinstance(kind, CustomType):
        yield kind


def _fields(kind: Type) -> tuple[Field, ...]:
    return kind.fields if isinstance(kind, StructType) else ()


def _folded(name: str) -> str:
    """`task_type`, `TaskType` and `taskType` are one slip of the finger apart."""
    return name.lower().replace("_", "").replace("-", "")


def _spelt(name: str) -> str:
    """`priority>=8` is a parameter named `priority>`, which nobody would write."""
    return f"{name}=" if name.endswith(">") else name
