"""The ring and the safe: what is sealed opens where it was sealed and nowhere else; what does not open fails nobody."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.errors import Invalid
from quarterdeck.core.redaction import SECRETS_MAX, redacted
from quarterdeck.engine.secrets import Key, Ring, RingError, Safe, Unopened
from quarterdeck.engine.secrets.field_encryption import key_ids_in
from quarterdeck.engine.secrets.keyring import About, new_key, parse
from tests.rules.test_redaction import values

OLD, NEW = Key("old", b"o" * 32), Key("new", b"n" * 32)
ABOUT: About = ("zone", "agent_tasks", "t1", "input_context")
PEPPER = b"p" * 32


def safe_of(*keys: Key) -> Safe:
    return Safe(Ring(keys), PEPPER)


SAFE = safe_of(NEW, OLD)


# -- the ring


@given(st.text(st.characters(codec="utf-8")))
def test_what_is_sealed_opens_to_what_it_was(clear: str) -> None:
    sealed = SAFE.ring.seal(clear, ABOUT)
    assert sealed.startswith("qs1.new.")
    assert SAFE.ring.open(sealed, ABOUT) == clear


def test_the_same_value_is_never_sealed_alike_twice() -> None:
    assert len({SAFE.ring.seal("hunter2", ABOUT) for _ in range(100)}) == 100


def test_every_changed_character_of_a_sealed_value_is_found() -> None:
    sealed = SAFE.ring.seal("hunter2", ABOUT)
    for place in range(len(sealed)):
        other = "A" if sealed[place] != "A" else "Q"
        changed = sealed[:place] + other + sealed[place + 1 :]
        try:
            opened = SAFE.ring.open(changed, ABOUT)
        except Unopened as error:
            assert "hunter2" not in str(error)
        else:
            # The last letter of base64 has bits that mean nothing.
            assert (opened, place) == ("hunter2", len(sealed) - 1)


@pytest.mark.parametrize("field", range(4))
def test_a_sealed_value_does_not_open_in_another_zone_table_row_or_field(field: int) -> None:
    sealed = SAFE.ring.seal("hunter2", ABOUT)
    elsewhere = [*ABOUT]
    elsewhere[field] += "x"
    with pytest.raises(Unopened):
        SAFE.ring.open(sealed, (elsewhere[0], elsewhere[1], elsewhere[2], elsewhere[3]))


def test_where_one_name_ends_and_the_next_begins_makes_a_difference() -> None:
    sealed = SAFE.ring.seal("hunter2", ("a|b", "c", "d", "e"))
    with pytest.raises(Unopened):
        SAFE.ring.open(sealed, ("a", "b|c", "d", "e"))


def test_another_key_of_the_same_name_does_not_open_it() -> None:
    sealed = safe_of(Key("old", b"x" * 32)).ring.seal("hunter2", ABOUT)
    with pytest.raises(Unopened):
        SAFE.ring.open(sealed, ABOUT)


@pytest.mark.parametrize("garbage", ["", "qs1", "qs1.new", "qs1.new..", "qs1.new.!.?", "qs2.new.AAAA.AAAA", "...."])
def test_garbage_does_not_open_and_does_not_fail_otherwise(garbage: str) -> None:
    with pytest.raises(Unopened):
        SAFE.ring.open(garbage, ABOUT)


def test_keys_are_told_by_commas_and_by_lines_in_either_base64() -> None:
    keys = [new_key() for _ in range(3)]
    for text in (",".join(key.told() for key in keys), "\n".join(key.told() for key in keys) + "\n"):
        assert parse(text) == keys
        assert parse(text.replace("+", "-").replace("/", "_").replace("=", "")) == keys
    assert Ring(keys).sealing_id == keys[0].id


@pytest.mark.parametrize(
    "told", ["", " , ", "hunter2", "a:hunter2", f"a b:{'x' * 43}=", "a:" + "A" * 42, "a.b:" + "A" * 43, ":" + "A" * 43]
)
def test_keys_that_cannot_be_are_refused_without_being_told(told: str) -> None:
    with pytest.raises(RingError) as refused:
        Ring(parse(told))
    assert "hunter2" not in str(refused.value)


def test_two_keys_of_one_name_are_refused() -> None:
    with pytest.raises(RingError):
        Ring([OLD, Key("old", b"x" * 32)])


def test_a_key_shows_its_name_and_no_more() -> None:
    assert repr(OLD) == "Key('old')"


# -- the safe


@given(values)
def test_a_sealed_text_opens_to_what_was_sent_and_is_masked_as_redaction_says(value: object) -> None:
    text = SAFE.seal(value, ABOUT)
    assert "\N{SNOWMAN}" not in text
    assert json.loads(SAFE.open(text, ABOUT)) == value
    assert json.loads(SAFE.masked(text)) == redacted(value)


def test_a_text_without_secrets_is_stored_as_it_is() -> None:
    value = {"max_tokens": 5, "text": 'say {"$sealed":"qs1.new.a.b"} or "password":"x"'}
    text = SAFE.seal(value, ABOUT)
    assert text == msgspec.json.encode(value).decode()
    assert SAFE.open(text, ABOUT) == text
    assert SAFE.masked(text) == text


@pytest.mark.parametrize("value", [{"a": {"$sealed": "qs1.new.AA.AA"}}, [{"$secret": 1}], {"$sealed": {}}])
def test_what_is_ours_cannot_be_sent(value: object) -> None:
    with pytest.raises(Invalid):
        SAFE.seal(value, ABOUT)


def test_a_value_holds_so_many_secrets_and_no_more() -> None:
    most = [{"token": "x"}] * SECRETS_MAX
    assert len(key_ids_in(SAFE.seal(most, ABOUT))) == SECRETS_MAX
    with pytest.raises(Invalid) as refused:
        SAFE.seal([*most, {"token": "x"}], ABOUT)
    assert refused.value.code == "too_many_secrets"


def test_a_value_that_does_not_open_is_masked_counted_and_logged_without_its_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = safe_of(OLD).seal({"password": "hunter2", "n": 1}, ABOUT)
    without = safe_of(NEW)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert json.loads(without.open(text, ABOUT)) == {"password": "***", "n": 1}
    assert without.unopened == 3
    [line] = caplog.messages
    assert "'old'" in line
    assert "hunter2" not in line
    assert text not in line


def test_a_row_that_was_swapped_with_another_opens_nothing() -> None:
    text = SAFE.seal({"password": "hunter2"}, ABOUT)
    assert json.loads(safe_of(NEW).open(text, ("zone", "agent_tasks", "t2", "input_context"))) == {"password": "***"}


def test_sealing_anew_moves_every_value_to_the_key_that_seals_and_changes_nothing_else() -> None:
    value = {"password": "hunter2", "more": [{"$secret": "x"}], "plain": "password"}
    text = safe_of(OLD).seal(value, ABOUT)
    anew = SAFE.resealed(text, ABOUT)
    assert key_ids_in(text) == ["old", "old"]
    assert key_ids_in(anew) == ["new", "new"]
    assert json.loads(safe_of(NEW).open(anew, ABOUT)) == value
    assert SAFE.resealed(anew, ABOUT) == anew
    assert safe_of(NEW).resealed(text, ABOUT) == text, "what does not open stays as it is"


def test_an_error_that_quotes_the_secrets_of_its_task_is_told_without_them() -> None:
    text = SAFE.seal({"login": {"$secret": "hunter2!"}, "n": 1}, ABOUT)
    assert SAFE.strike("login failed for hunter2!", [(text, ABOUT)]) == "login failed for ***"
    assert SAFE.strike("login failed for hunter3", [(text, ABOUT)]) == "login failed for hunter3"


class Asked(msgspec.Struct):
    said: dict[str, object]


def test_the_digest_of_what_holds_secrets_cannot_be_guessed_without_the_pepper() -> None:
    holds, plain = Asked({"password": "1234"}), Asked({"n": 1})
    other = Safe(SAFE.ring, b"q" * 32)
    assert SAFE.digest(holds) == safe_of(OLD).digest(holds) != other.digest(holds)
    assert SAFE.digest(holds) != SAFE.digest(Asked({"password": "1235"}))
    assert SAFE.digest(plain) == other.digest(plain)
