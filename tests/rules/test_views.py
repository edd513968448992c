"""Views: every view of the server can be built from a row, and each conversion of `core.views`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Union, get_args, get_origin

import msgspec
import pytest
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from quarterdeck import domain
from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.views import JsonText, view_of

INSTANT = 1_767_323_045_678
JSON_OBJECTS = {"quotas"}
"""Columns that a function of the row decodes as an object. The others hold lists, for such functions."""


def declared_views() -> dict[str, tuple[Callable[[object], Struct], type[Struct], type[Struct]]]:
    """The function, row and view of each `view_of` in the components."""
    found: dict[str, tuple[Callable[[object], Struct], type[Struct], type[Struct]]] = {}
    for info in pkgutil.walk_packages(domain.__path__, f"{domain.__name__}."):
        for value in vars(importlib.import_module(info.name)).values():
            if inspect.isfunction(value) and value.__code__ in view_of.__code__.co_consts:
                types = inspect.getclosurevars(value).nonlocals
                found[types["view_type"].__name__] = (value, types["row_type"], types["view_type"])
    return found


VIEWS = declared_views()


def sample(name: str, kind: object, full: bool) -> object:
    """A value for a field. Optional fields are None unless `full`."""
    if kind == JsonText:
        return "{}" if name in JSON_OBJECTS else "[]"
    if get_origin(kind) is Annotated:
        return sample(name, get_args(kind)[0], full)
    if get_origin(kind) in (Union, UnionType):
        return sample(name, next(one for one in get_args(kind) if one is not NoneType), full) if full else None
    if isinstance(kind, type) and issubclass(kind, Struct):
        return sample_row(kind, full)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(iter(kind))
    return {str: "text", int: 1, bool: True, tuple[str, ...]: ("text",)}[kind]  # type: ignore[index]  # a KeyError is fine


def sample_row(row_type: type[Struct], full: bool) -> Struct:
    return row_type(**{field.name: sample(field.name, field.type, full) for field in msgspec.structs.fields(row_type)})


def test_the_views_of_all_components_are_found() -> None:
    assert {"AgentView", "InvocationView", "LeaseView", "SessionView", "TaskView"} <= VIEWS.keys()


@pytest.mark.parametrize("full", [True, False], ids=["full", "empty"])
@pytest.mark.parametrize("name", sorted(VIEWS))
def test_every_view_is_built_from_its_row_with_values_of_its_types(name: str, full: bool) -> None:
    build, row_type, view_type = VIEWS[name]
    view = build(sample_row(row_type, full))
    values = msgspec.json.decode(msgspec.json.encode(view))
    for field in msgspec.structs.fields(view_type):
        if field.required and Raw not in (field.type, *get_args(field.type)):
            msgspec.convert(values[field.encode_name], field.type)


# -- conversions -------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class Row(Struct):
    id: str = "a"
    at: Millis = INSTANT
    maybe_at: Millis | None = None
    json: JsonText = '{"a": 1}'
    maybe_json: JsonText | None = None
    flag: int = 0
    count: int = 3
    colour: Colour = Colour.RED


class Outer(Struct):
    row: Row
    count: int = 7


class Pair(Struct):
    first: Row
    second: Row


def test_fields_of_the_same_type_are_copied() -> None:
    class View(Struct):
        id: Annotated[str, Meta(description="the id")]
        count: int | None
        colour: Colour
        at: Millis

    assert view_of(Row, View)(Row()) == View("a", 3, Colour.RED, INSTANT)


def test_instants_become_iso_text() -> None:
    class View(Struct):
        at: str
        maybe_at: Annotated[str, Meta(description="later")] | None

    assert view_of(Row, View)(Row()) == View("2026-01-02T03:04:05.678Z", None)
    assert view_of(Row, View)(Row(maybe_at=INSTANT)).maybe_at == iso(INSTANT)


def test_an_instant_0_is_not_none() -> None:
    class View(Struct):
        maybe_at: str | None

    assert view_of(Row, View)(Row(maybe_at=0)).maybe_at == iso(0)


def test_stored_json_is_passed_through_unchanged() -> None:
    class View(Struct):
        json: Raw
        maybe_json: Raw | None

    view = view_of(Row, View)
    assert msgspec.json.encode(view(Row())) == b'{"json":{"a": 1},"maybe_json":null}'
    assert msgspec.json.encode(view(Row(maybe_json="[ 1 ]"))) == b'{"json":{"a": 1},"maybe_json":[ 1 ]}'


def test_missing_json_becomes_null_where_json_is_required() -> None:
    class View(Struct):
        maybe_json: Raw

    assert view_of(Row, View)(Row()).maybe_json == Raw(b"null")


def test_integers_become_booleans() -> None:
    class View(Struct):
        flag: bool

    view = view_of(Row, View)
    assert (view(Row(flag=0)).flag, view(Row(flag=1)).flag) == (False, True)


def test_an_enum_of_strings_becomes_text() -> None:
    class View(Struct):
        colour: str

    assert view_of(Row, View)(Row()).colour == "red"


def test_an_override_names_a_field_and_its_value_is_converted() -> None:
    class View(Struct):
        created_at: str

    assert view_of(Row, View, created_at="at")(Row()).created_at == iso(INSTANT)


def test_an_override_is_a_function_of_the_row_and_its_value_is_not_converted() -> None:
    class View(Struct):
        id: str
        total: int

    assert view_of(Row, View, total=lambda row: row.count + 1)(Row()) == View("a", 4)


def test_a_field_without_a_source_keeps_its_default() -> None:
    class View(Struct):
        id: str
        secret: str | UnsetType = UNSET
        count: int = 0

    assert view_of(Row, View)(Row()) == View("a", UNSET, 3)


def test_views_with_keyword_only_fields_are_built() -> None:
    class Base(Struct):
        id: str

    class View(Base, kw_only=True):
        count: int

    assert view_of(Row, View)(Row()) == View("a", count=3)


def test_fields_of_a_struct_in_the_row_are_found_after_those_of_the_row() -> None:
    class View(Struct):
        id: str
        at: str
        count: int

    assert view_of(Outer, View)(Outer(Row())) == View("a", iso(INSTANT), 7)


# -- errors ------------------------------------------------------------------------------------------------------


def test_a_field_without_source_and_default_is_an_error_that_names_it() -> None:
    class View(Struct):
        id: str
        owner: str

    with pytest.raises(TypeError, match=r"^View\.owner has no source: Row has no field 'owner'\.$"):
        view_of(Row, View)(Row())


def test_an_override_with_an_unknown_field_of_the_row_is_an_error() -> None:
    class View(Struct):
        owner: str = ""

    with pytest.raises(TypeError, match=r"^View\.owner has no source: Row has no field 'ownr'\.$"):
        view_of(Row, View, owner="ownr")(Row())


def test_an_override_of_an_unknown_field_of_the_view_is_an_error() -> None:
    class View(Struct):
        id: str

    with pytest.raises(TypeError, match=r"^View has no field 'ident' to override\.$"):
        view_of(Row, View, ident="id")(Row())


class WrongNumber(Struct):
    count: str


class WrongText(Struct):
    id: Raw


class WrongInstant(Struct):
    at: int


class WrongOptional(Struct):
    maybe_at: str


@pytest.mark.parametrize(
    ("view_type", "field"),
    [(WrongNumber, "count"), (WrongText, "id"), (WrongInstant, "at"), (WrongOptional, "maybe_at")],
)
def test_types_without_a_conversion_are_an_error_that_names_both_fields(view_type: type[Struct], field: str) -> None:
    with pytest.raises(TypeError, match=rf"^{view_type.__name__}\.{field} has type .*, but Row\.{field} has type "):
        view_of(Row, view_type)(Row())


def test_two_structs_of_a_row_with_the_same_field_are_an_error() -> None:
    class View(Struct):
        id: str

    with pytest.raises(TypeError, match=r"^Two structs in Pair have a field 'at'\.$"):
        view_of(Pair, View)(Pair(Row(), Row()))
