"""Functions that build a view from a row: each field is copied, and converted if its two types differ.

| field of the row | field of the view  |                                                  |
|------------------|--------------------|--------------------------------------------------|
| `Millis`         | `str`              | ISO-8601                                         |
| `JsonText`       | `Raw`              | not decoded                                      |
| `int`            | `bool`             | 0 is false                                       |
| a `StrEnum`      | `str`              | copied                                           |
| optional         | optional, or `Raw` | None stays None, or becomes the `Raw` of `null`  |

The type checker does not see the copying. Instead, `tests/rules/test_views.py` builds every view of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Annotated, TypeVar, Union, get_args, get_origin

from msgspec import Raw, Struct
from msgspec.structs import fields

from quarterdeck.core.clock import Millis, iso

JsonText = Annotated[str, "JSON"]
"""The text of a JSON value, as stored."""
RowT = TypeVar("RowT", bound=Struct)
ViewT = TypeVar("ViewT", bound=Struct)
Override = str | Callable[[RowT], object]
CONVERSIONS: dict[tuple[object, object], str] = {
    (Millis, str): "iso({})",
    (JsonText, Raw): "Raw({})",
    (int, bool): "bool({})",
}


def view_of(row_type: type[RowT], view_type: type[ViewT], /, **overrides: Override[RowT]) -> Callable[[RowT], ViewT]:
    """Return a function that builds a view from a row: `view_of(Session, SessionView, agent_session_id="id")`.

    The value of a field comes from the field of the row with the same name. An override names another field of the row,
    or is a function of the row. The fields of a struct in the row count as fields of the row. A field without a source
    keeps its default; if it has none, the first call raises a TypeError.
    """
    build: Callable[[RowT], ViewT] | None = None

    def view(row: RowT) -> ViewT:
        nonlocal build
        if build is None:
            build = _compile(row_type, view_type, overrides)
        return build(row)

    return view


def _compile(
    row_type: type[RowT], view_type: type[ViewT], overrides: Mapping[str, Override[RowT]]
) -> Callable[[RowT], ViewT]:
    """Compile the text of the function, as `dataclasses` does for `__init__`: a call then inspects no types."""
    row_fields, parameters = _fields("row", row_type), signature(view_type).parameters
    namespace: dict[str, object] = {"View": view_type, "iso": iso, "Raw": Raw, "NULL": Raw(b"null")}
    arguments: list[str] = []
    by_position = True  # Positional arguments take half as long as named ones.
    if unknown := overrides.keys() - parameters.keys():
        raise TypeError(f"{view_type.__name__} has no field {min(unknown)!r} to override.")
    for field in fields(view_type):
        where, source = f"{view_type.__name__}.{field.name}", overrides.get(field.name, field.name)
        by_position &= parameters[field.name].kind is Parameter.POSITIONAL_OR_KEYWORD
        if callable(source):
            namespace[f"{field.name}_of"] = source
            value = f"{field.name}_of(row)"
        elif source in row_fields:
            expression, kind = row_fields[source]
            value = _convert(expression, kind, field.type)
            if not value:
                raise TypeError(f"{where} has type {field.type}, but {row_type.__name__}.{source} has type {kind}.")
        elif source == field.name and not field.required:
            by_position = False
            continue
        else:
            raise TypeError(f"{where} has no source: {row_type.__name__} has no field {source!r}.")
        arguments.append(value if by_position else f"{field.name}={value}")
    exec(f"def build(row):\n    return View({', '.join(arguments)})", namespace)  # noqa: S102 - our own text
    build: Callable[[RowT], ViewT] = namespace["build"]  # type: ignore[assignment]  # its text is above
    return build


def _fields(path: str, struct: type[Struct]) -> dict[str, tuple[str, object]]:
    """The expression and the type of each field, also of structs in the row. The row's own fields come first."""
    own = {field.name: (f"{path}.{field.name}", field.type) for field in fields(struct)}
    inner: dict[str, tuple[str, object]] = {}
    for expression, kind in own.values():
        if isinstance(kind, type) and issubclass(kind, Struct):
            found = _fields(expression, kind)
            if repeated := inner.keys() & found.keys():
                raise TypeError(f"Two structs in {struct.__name__} have a field {min(repeated)!r}.")
            inner |= found
    return inner | own


def _convert(expression: str, source: object, target: object) -> str:
    """The expression for a value of the target type, or "" if there is no conversion."""
    sources, targets = _members(source), _members(target)
    templates = {_template(kind, to) for kind in sources - {NoneType} for to in targets} - {""}
    if len(templates) != 1:
        return ""
    converted = templates.pop().format(expression)
    if NoneType not in sources or (converted == expression and NoneType in targets):
        return converted
    absent = "None" if NoneType in targets else "NULL" if Raw in targets else ""
    return absent and f"{absent} if {expression} is None else {converted}"


def _template(source: object, target: object) -> str:
    is_text = target is str and isinstance(source, type) and issubclass(source, StrEnum)
    return "{}" if source == target or is_text else CONVERSIONS.get((source, target), "")


def _members(kind: object) -> frozenset[object]:
    """The members of a union, without the annotations of `msgspec.Meta`."""
    if get_origin(kind) in (Union, UnionType):
        return frozenset(member for argument in get_args(kind) for member in _members(argument))
    if get_origin(kind) is Annotated and kind not in (Millis, JsonText):
        return _members(get_args(kind)[0])
    return frozenset({kind})
