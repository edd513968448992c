"""A parser for our Prometheus rules file: lists and maps by indentation, and plain values. It refuses all other YAML,
so that every YAML parser reads the file alike."""

from __future__ import annotations

import re
from collections.abc import Iterator

Tree = dict[str, "Tree"] | list["Tree"] | str
Line = tuple[int, str]


def parse_rules(text: str) -> Tree:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    indented_lines = [(len(line) - len(line.lstrip()), line.strip()) for line in lines]
    tree, rest = _parse_block(indented_lines)
    assert not rest, f"cannot be parsed: {rest[0]}"
    return tree


def _parse_block(lines: list[Line]) -> tuple[Tree, list[Line]]:
    return _parse_list(lines) if lines[0][1].startswith("- ") else _parse_map(lines)


def _parse_list(lines: list[Line]) -> tuple[Tree, list[Line]]:
    depth, items = lines[0][0], []
    while lines and lines[0][0] == depth:
        assert lines[0][1].startswith("- "), f"not a list item: {lines[0][1]}"
        item, lines = _parse_map([(depth + 2, lines[0][1][2:]), *lines[1:]])
        items.append(item)
    return items, lines


def _parse_map(lines: list[Line]) -> tuple[Tree, list[Line]]:
    depth, found = lines[0][0], {}
    while lines and lines[0][0] == depth:
        matched = re.fullmatch(r"([a-z_]+):(?: (.+))?", lines[0][1])
        assert matched, f"not a name and a value: {lines[0][1]}"
        name, value = matched[1], matched[2]
        assert name not in found, f"duplicate name: {name}"
        lines = lines[1:]
        if value is None:
            found[name], lines = _parse_block(lines)
        else:
            # A value with another first character, or with one of these sequences, has another meaning in YAML.
            assert value[0].isalnum(), f"not plain: {value}"
            assert ": " not in value, f"not plain: {value}"
            assert " #" not in value, f"not plain: {value}"
            found[name] = value
    return found, lines


def metric_names(expression: str) -> Iterator[str]:
    """Yield the metrics that an expression names."""
    bare_expression = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", "", expression)
    yield from re.findall(r"[a-z_:][a-z0-9_:]*(?!\w|\s*\()", bare_expression)
