"""Finds the route for a path in a tree of dictionaries, so that a lookup costs the same for 200 routes as for 5."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from quarterdeck.core.ids import is_name, is_numeric_id, is_path_id

T = TypeVar("T")
NAME_PARAMETERS = frozenset({"subject"})
"""Path parameters that hold a subject's name, which its issuer chooses."""
NUMBER_PARAMETERS = frozenset({"fleet", "member", "message"})
"""Path parameters that hold small numbers, because agents type them. All other path parameters hold path ids."""


def _is_decodable_name(segment: str) -> bool:
    """Whether the segment is a name. Refuses U+FFFD: it replaces invalid UTF-8, so two names could become equal."""
    return is_name(segment) and "\ufffd" not in segment


def _validator_for(name: str) -> Callable[[str], bool]:
    if name in NUMBER_PARAMETERS:
        return is_numeric_id
    return _is_decodable_name if name in NAME_PARAMETERS else is_path_id


class _Node(Generic[T]):
    __slots__ = ("literals", "methods", "parameter")

    def __init__(self) -> None:
        self.literals: dict[str, _Node[T]] = {}
        self.parameter: tuple[str, _Node[T], Callable[[str], bool]] | None = None
        self.methods: dict[str, T] = {}


class RouteMatch(Generic[T]):
    """The result of a lookup: the target for the method, if there is one, and the path parameters."""

    __slots__ = ("invalid_parameter", "methods", "params", "target")

    def __init__(self, target: T | None, params: dict[str, str], methods: Iterable[str]) -> None:
        self.target = target
        self.params = params
        self.methods = methods
        self.invalid_parameter: str | None = None
        """The first parameter whose value is not valid."""


class Router(Generic[T]):
    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, method: str, path: str, target: T) -> None:
        node = self._root
        for segment in path.split("/")[1:]:
            if segment.startswith("{"):
                name = segment[1:-1]
                if node.parameter is None:
                    node.parameter = (name, _Node(), _validator_for(name))
                elif node.parameter[0] != name:
                    raise ValueError(f"{path}: other routes name the parameter {node.parameter[0]!r}, not {name!r}")
                node = node.parameter[1]
            else:
                node = node.literals.setdefault(segment, _Node())
        if method in node.methods:
            raise ValueError(f"there are two routes for {method} {path}")
        node.methods[method] = target

    def find(self, method: str, path: str) -> RouteMatch[T] | None:
        """Return the match for a path, or None if no route has this path. A literal segment wins over a parameter."""
        node = self._root
        params: dict[str, str] = {}
        invalid_parameter: str | None = None
        for segment in path.split("/")[1:]:
            child = node.literals.get(segment)
            if child is None:
                if node.parameter is None or not segment:
                    return None
                name, child, is_valid = node.parameter
                if not is_valid(segment):
                    invalid_parameter = invalid_parameter or name
                params[name] = segment
            node = child
        if not node.methods:
            return None
        match = RouteMatch(node.methods.get(method), params, node.methods)
        match.invalid_parameter = invalid_parameter
        return match
