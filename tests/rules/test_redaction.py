"""Redaction finds every secret in a JSON value or text and changes nothing else."""

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
"""Only secrets contain it."""
plain_text = st.text(st.characters(codec="utf-8", exclude_characters=MARK), max_size=12)
plain_names = plain_text.filter(
    lambda name: not redaction.is_secret_name(name) and name not in (SECRET_MARKER, ENCRYPTED_MARKER)
)
secret_text = plain_text.map(lambda text: f"{MARK}{text}")
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | plain_text


@st.composite
def secret_names(draw: st.DrawFn) -> str:
    """A name of `SECRET_NAMES` in one of its spellings."""
    words = draw(st.sampled_from(SECRET_NAMES)).split("_")
    separator = draw(st.sampled_from(["_", "-", ""]))
    change_case = draw(st.sampled_from([str.lower, str.upper, str.title]))
    return separator.join(map(change_case, words))


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return (
        st.lists(inner, max_size=4)
        | st.dictionaries(plain_names, inner, max_size=4)
        | st.dictionaries(secret_names(), secret_text | st.lists(inner, max_size=2) | st.integers(), max_size=2)
    )


plain_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_names, inner, max_size=4)
)
values = st.recursive(scalars | secret_text.map(lambda text: {SECRET_MARKER: text}), containers)


@given(values)
def test_no_secret_remains_in_the_public_value(value: object) -> None:
    public, found = redaction.split_secrets(value)
    assert MARK not in json.dumps(public, ensure_ascii=False)
    assert sum(secret.count(MARK) for secret in found.values()) == json.dumps(value, ensure_ascii=False).count(MARK)


@given(values)
def test_path_of_a_secret_leads_to_its_value_and_its_mask(value: object) -> None:
    public, found = redaction.split_secrets(value)
    for path, secret in found.items():
        original, redacted = value, public
        for step in path:
            original, redacted = original[step], redacted[step]  # type: ignore[index]  # only containers
        assert original in (secret, {SECRET_MARKER: secret})
        assert redacted == MASK


@given(plain_values)
def test_value_without_secrets_is_unchanged_and_passes_the_quick_check(value: object) -> None:
    assert redaction.redact(value) == value
    assert not redaction.may_hold_secrets(msgspec.json.encode(value))


@given(values)
def test_redaction_is_idempotent(value: object) -> None:
    once = redaction.redact(value)
    assert redaction.redact(once) == once


@given(values)
def test_quick_check_has_no_false_negatives(value: object) -> None:
    if redaction.split_secrets(value)[1]:
        assert redaction.may_hold_secrets(msgspec.json.encode(value))


@given(values)
def test_replacing_secrets_by_themselves_is_the_identity(value: object) -> None:
    assert redaction.replace_secrets(value, lambda secret: secret) == value


@pytest.mark.parametrize("name", ["password", "PASSWORD", "api_key", "API-KEY", "apiKey", "x-api-key", "clientSecret"])
def test_secret_names_ignore_case_and_word_separators(name: str) -> None:
    assert redaction.redact({name: "x"}) == {name: MASK}


@pytest.mark.parametrize(
    "name",
    ["max_tokens", "tokens", "token_count", "passwords", "secretary", "my_password", "api key", "p_assword",
     "to\N{KELVIN SIGN}en", "pa\N{LATIN SMALL LETTER LONG S}sword"],
)  # fmt: skip
def test_only_complete_names_are_secret(name: str) -> None:
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
def test_invalid_secret_marker_is_refused_with_its_path(value: object) -> None:
    with pytest.raises(Invalid) as refused:
        redaction.redact({"a": [0, value]})
    assert refused.value.code == "reserved_key"
    assert refused.value.members["field"] == "$.a[1]"
    assert redaction.may_hold_secrets(msgspec.json.encode({"a": [0, value]}))


def test_documented_names_equal_secret_names() -> None:
    page = (ROOT / "docs" / "secrets.md").read_text(encoding="utf-8")
    listed = page.partition("<!-- names -->")[2].partition("<!-- /names -->")[0]
    assert listed.replace("`", "").replace(",", " ").split() == sorted(SECRET_NAMES)


# -- free text


@given(plain_text, secret_text.filter(lambda text: len(text) >= 4), plain_text)
def test_known_secrets_are_redacted_in_text(before: str, secret: str, after: str) -> None:
    redacted = redaction.redact_text(f"{before}{secret}{after}", {secret})
    assert secret not in redacted
    assert redaction.redact_text(redacted, {secret}) == redacted


def test_longer_of_two_secrets_with_the_same_prefix_is_redacted_completely() -> None:
    assert redaction.redact_text("a hunter2extra b", {"hunter2", "hunter2extra"}) == "a *** b"


@pytest.mark.parametrize("quote", [json.dumps, repr, lambda text: json.dumps(text, ensure_ascii=False)])
def test_quoted_and_escaped_secret_is_redacted_in_text(quote: Callable[[str], str]) -> None:
    secret = 'line one\nline "two" \\ é'
    assert redaction.redact_text(f"cannot use {quote(secret)}!", {secret}) in ('cannot use "***"!', "cannot use '***'!")


def test_many_secrets_in_a_long_text_are_searched_within_five_seconds() -> None:
    # The most that one task can have. Every character of the text is the start of a possible match for all of them.
    secrets = {f"{'a' * 200}{n}" for n in range(3 * redaction.SECRETS_MAX)}
    started_at = time.process_time()
    assert redaction.redact_text("a" * 300_000, secrets) == "a" * 300_000
    assert time.process_time() - started_at < 5


def test_short_secrets_are_not_redacted_in_text() -> None:
    assert redaction.redact_text("a banana", {"a", "an"}) == "a banana"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ('{"password": "hun\\"ter2", "n": 1}', '{"password": "***", "n": 1}'),
        ("{'api_key': 'abc', 'n': 1}", "{'api_key': '***', 'n': 1}"),
        ("GET /x?access_token=abc&n=1", "GET /x?access_token=***&n=1"),
        ("PASSWORD=hunter2 make", "PASSWORD=*** make"),
        ("Authorization: Bearer abc.def-ghi", "Authorization: Bearer ***"),
        ("cannot reach postgresql://me:hunter2@db/x", "cannot reach postgresql://me:***@db/x"),
    ],
)
def test_text_in_the_form_of_a_secret_is_redacted(text: str, redacted: str) -> None:
    assert redaction.redact_text(text) == redacted
    assert redaction.redact_text(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    ["Unexpected token: }", "max_tokens=5", "the password is wrong", "http://db:5432/x", "a bearer of news", "a@b.c"],
)
def test_other_text_is_unchanged(text: str) -> None:
    assert redaction.redact_text(text) == text
