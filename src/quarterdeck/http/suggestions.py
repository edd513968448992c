"""Suggests a name for an unknown field or parameter: the closest known name, or else a list of the known names."""

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

UNKNOWN_FIELD_PREFIX = "Object contains unknown field `"
"""The beginning of msgspec's error for an unknown field."""
NAME_CHARACTERS_MAX = 100
"""The error shows at most this much of the unknown name, because a client can send a name of any length."""
LISTED_NAMES_MAX = 30
_PATH_STEPS = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


def unknown_name(message: str) -> str | None:
    """The unknown name in an error message of msgspec. None if the error is about something else."""
    if not message.startswith(UNKNOWN_FIELD_PREFIX):
        return None
    return message.removeprefix(UNKNOWN_FIELD_PREFIX).removesuffix("`")


def unknown_name_detail(noun: str, name: str, known_names: Sequence[str]) -> str:
    detail = f"Unknown {noun} `{name[:NAME_CHARACTERS_MAX]}`."
    names_by_normalized = {_normalize(known_name): known_name for known_name in known_names}
    if matches := get_close_matches(_normalize(name[:NAME_CHARACTERS_MAX]), names_by_normalized, n=1):
        return f"{detail} The closest {noun} is `{_parameter_spelling(names_by_normalized[matches[0]])}`."
    if not known_names:
        return f"{detail} No {noun}s are allowed here."
    name_list = ", ".join(f"`{_parameter_spelling(known_name)}`" for known_name in known_names[:LISTED_NAMES_MAX])
    return f"{detail} Allowed: {name_list}{', …' if known_names[LISTED_NAMES_MAX:] else ''}."


def field_names_at(struct_type: type[msgspec.Struct], path: str) -> list[str]:
    """The wire names of the fields at a path within a document of this type."""
    types: list[Type] = [*_member_types(type_info(struct_type))]
    for step in _PATH_STEPS.findall(path.split("`")[0]):
        types = [part for candidate in types for part in _types_at(candidate, step)]
    return [field.encode_name for candidate in types for field in _fields(candidate)]


def _types_at(type_node: Type, step: str) -> Iterator[Type]:
    if isinstance(type_node, CollectionType) and step.startswith("["):
        yield from _member_types(type_node.item_type)
    elif isinstance(type_node, DictType) and step.startswith("["):
        yield from _member_types(type_node.value_type)
    else:
        for field in _fields(type_node):
            if field.encode_name == step:
                yield from _member_types(field.type)


def _member_types(type_node: Type) -> Iterator[Type]:
    if isinstance(type_node, Metadata):
        yield from _member_types(type_node.type)
    elif isinstance(type_node, UnionType):
        for member in type_node.types:
            yield from _member_types(member)
    elif not isinstance(type_node, CustomType):
        yield type_node


def _fields(type_node: Type) -> tuple[Field, ...]:
    return type_node.fields if isinstance(type_node, StructType) else ()


def _normalize(name: str) -> str:
    """Treat `task_type`, `TaskType` and `taskType` as equal."""
    return name.lower().replace("_", "").replace("-", "")


def _parameter_spelling(name: str) -> str:
    """Show the parameter named `priority>` as `priority>=`: clients write `priority>=8`."""
    return f"{name}=" if name.endswith(">") else name
