"""What is secret in a JSON value is found wherever it stands, and nothing else is touched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core import redaction
from quarterdeck.core.errors import Invalid
from quarterdeck.core.redaction import ENCRYPTED_MARKER, MASK, SECRET_MARKER, SECRET_NAMES
from tests.support.source import ROOT

MARK = "\N{SNOWMAN}"
"""Only secrets hold it."""
plain_text = st.text(st.characters(codec="utf-8", exclude_characters=MARK), max_size=12)
plain_names = plain_text.filter(
    lambda name: not redaction.is_secret_name(name) and name not in (SECRET_MARKER, ENCRYPTED_MARKER)
)
secret_text = plain_text.map(lambda text: f"{MARK}{text}")
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | plain_text


@st.composite
def secret_names(draw: st.DrawFn) -> str:
    """A published name, in one of its spellings."""
    words = draw(st.sampled_from(SECRET_NAMES)).split("_")
    glue = draw(st.sampled_from(["_", "-", ""]))
    change = draw(st.sampled_from([str.lower, str.upper, str.title]))
    return glue.join(map(change, words))


def holding(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(plain_names, inner, max_size=4)
        | st.dictionaries(secret_names(), secret_text | st.lists(inner, max_size=2) | st.integers(), max_size=2)
    )


plain_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_names, inner, max_size=4)
)
values = st.recursive(scalars | secret_text.map(lambda text: {SECRET_MARKER: text}), holding)


@given(values)
def test_nothing_that_is_secret_survives(value: object) -> None:
    public, found = redaction.split_secrets(value)
    assert MARK not in json.dumps(public, ensure_ascii=False)
    assert sum(secret.count(MARK) for secret in found.values()) == json.dumps(value, ensure_ascii=False).count(MARK)


@given(values)
def test_what_is_found_stands_where_its_path_says(value: object) -> None:
    public, found = redaction.split_secrets(value)
    for path, secret in found.items():
        there, here = value, public
        for step in path:
            there, here = there[step], here[step]  # type: ignore[index]  # a path leads through what has it
        assert there in (secret, {SECRET_MARKER: secret})
        assert here == MASK


@given(plain_values)
def test_what_holds_no_secret_is_unchanged_and_need_not_be_looked_at_twice(value: object) -> None:
    assert redaction.redact(value) == value
    assert not redaction.may_hold_secrets(msgspec.json.encode(value))


@given(values)
def test_redacting_twice_is_redacting_once(value: object) -> None:
    once = redaction.redact(value)
    assert redaction.redact(once) == once


@given(values)
def test_the_quick_look_overlooks_nothing(value: object) -> None:
    if redaction.split_secrets(value)[1]:
        assert redaction.may_hold_secrets(msgspec.json.encode(value))


@given(values)
def test_replacing_secrets_by_themselves_changes_nothing(value: object) -> None:
    assert redaction.replace_secrets(value, lambda secret: secret) == value


@pytest.mark.parametrize("name", ["password", "PASSWORD", "api_key", "API-KEY", "apiKey", "x-api-key", "clientSecret"])
def test_a_name_is_the_same_in_every_case_and_spelling(name: str) -> None:
    assert redaction.redact({name: "x"}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "tokens", "token_count", "passwords", "secretary", "my_password", "api key", "p_assword",
     "to\N{KELVIN SIGN}en", "pa\N{LATIN SMALL LETTER LONG S}sword"],
)  # fmt: skip
def test_only_whole_names_count(name: str) -> None:
    assert redaction.redact({name: "x"}) == {name: "x"}


def test_only_strings_are_secret() -> None:
    value = {"token": 4, "password": None, "secret": ["a"], "credentials": {"user": "u", "password": "p"}}
    assert redaction.redact(value) == {**value, "credentials": {"user": "u", "password": MASK}}


@pytest.mark.parametrize(
    "value",
    [
        {SECRET_MARKER: 5},
        {SECRET_MARKER: {"a": "b"}},
        {SECRET_MARKER: "x", "more": 1},
        {ENCRYPTED_MARKER: "qs1.a.b.c"},
        {ENCRYPTED_MARKER: None, "a": 1},
    ],
)
def test_what_is_marked_in_a_way_that_cannot_be_is_refused_and_said_where(value: object) -> None:
    with pytest.raises(Invalid) as refused:
        redaction.redact({"a": [0, value]})
    assert refused.value.code == "reserved_key"
    assert refused.value.members["field"] == "$.a[1]"
    assert redaction.may_hold_secrets(msgspec.json.encode({"a": [0, value]}))


def test_the_documents_list_is_the_list() -> None:
    page = (ROOT / "docs" / "secrets.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- names -->")[2].partition("<!-- /names -->")[0]
    assert listed.replace("`", "").replace(",", " ").split() == sorted(SECRET_NAMES)


# -- free text


@given(plain_text, secret_text.filter(lambda text: len(text) >= 4), plain_text)
def test_known_secrets_are_struck_out_of_text(before: str, secret: str, after: str) -> None:
    struck = redaction.redact_text(f"{before}{secret}{after}", {secret})
    assert secret not in struck
    assert redaction.redact_text(struck, {secret}) == struck


def test_of_two_secrets_that_begin_alike_no_end_is_left() -> None:
    assert redaction.redact_text("a hunter2extra b", {"hunter2", "hunter2extra"}) == "a *** b"


@pytest.mark.parametrize("quote", [json.dumps, repr, lambda text: json.dumps(text, ensure_ascii=False)])
def test_a_secret_that_is_quoted_is_struck_out_too(quote: Callable[[str], str]) -> None:
    secret = 'line one\nline "two" \\ é'
    assert redaction.redact_text(f"cannot use {quote(secret)}!", {secret}) in ('cannot use "***"!', "cannot use '***'!")


def test_looking_for_many_secrets_in_a_long_text_takes_no_time_to_speak_of() -> None:
    # As many as one task can have, made so that each letter of the text begins all of them.
    secrets = {f"{'a' * 200}{n}" for n in range(3 * redaction.SECRETS_MAX)}
    began = time.process_time()
    assert redaction.redact_text("a" * 300_000, secrets) == "a" * 300_000
    assert time.process_time() - began < 5


def test_short_values_are_not_struck_out_because_the_gaps_would_tell_them() -> None:
    assert redaction.redact_text("a banana", {"a", "an"}) == "a banana"


@pytest.mark.parametrize(
    ("said", "struck"),
    [
        ('{"password": "hun\\"ter2", "n": 1}', '{"password": "***", "n": 1}'),
        ("{'api_key': 'abc', 'n': 1}", "{'api_key': '***', 'n': 1}"),
        ("GET /x?access_token=abc&n=1", "GET /x?access_token=***&n=1"),
        ("PASSWORD=hunter2 make", "PASSWORD=*** make"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ("cannot reach postgresql://me:hunter2@db/x", "cannot reach postgresql://me:***@db/x"),
    ],
)
def test_what_says_itself_that_it_is_secret_is_struck_out_of_text(said: str, struck: str) -> None:
    assert redaction.redact_text(said) == struck
    assert redaction.redact_text(struck) == struck


@pytest.mark.parametrize(
    "said",
    ["Unexpected token: }", "max_tokens=5", "the password is wrong", "http://db:5432/x", "a bearer of news", "a@b.c"],
)
def test_other_text_stays_as_it_is(said: str) -> None:
    assert redaction.redact_text(said) == said
