"""Structs of which a test says only what matters to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def build_struct(struct_type: Callable[..., T], /, *positional: object, **fields: object) -> T:
    """One of these. What is gathered in a dict has no types that could be checked before it runs; a name that the
    struct does not know, or one too few, still fails right here."""
    return struct_type(*positional, **fields)
