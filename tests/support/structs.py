"""Structs from keyword fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def build_struct(struct_type: Callable[..., T], /, *positional: object, **fields: object) -> T:
    """Build a struct. The fields come from a dict, so no type checker can check them; an unknown or missing field fails
    here."""
    return struct_type(*positional, **fields)
