"""The ring and the safe: what is sealed opens where it was sealed and nowhere else; what does not open fails nobody."""

from __future__ import annotations

import json
import logging

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.errors import Invalid
from quarterdeck.core.redaction import SECRETS_MAX, redact
from quarterdeck.engine.secrets import DecryptionError, FieldCipher, Keyring, KeyringError, SecretKey
from quarterdeck.engine.secrets.field_encryption import key_ids_in
from quarterdeck.engine.secrets.keyring import FieldRef, generate_key, parse_keys
from tests.rules.test_redaction import values

OLD, NEW = SecretKey("old", b"o" * 32), SecretKey("new", b"n" * 32)
ABOUT: FieldRef = ("zone", "agent_tasks", "t1", "input_context")
PEPPER = b"p" * 32


def safe_of(*keys: SecretKey) -> FieldCipher:
    return FieldCipher(Keyring(keys), PEPPER)


SAFE = safe_of(NEW, OLD)


# -- the ring


@given(st.text(st.characters(codec="utf-8")))
def test_what_is_sealed_opens_to_what_it_was(clear: str) -> None:
    sealed = SAFE.keyring.encrypt(clear, ABOUT)
    assert sealed.startswith("qs1.new.")
    assert SAFE.keyring.decrypt(sealed, ABOUT) == clear


def test_the_same_value_is_never_sealed_alike_twice() -> None:
    assert len({SAFE.keyring.encrypt("hunter2", ABOUT) for _ in range(100)}) == 100


def test_every_changed_character_of_a_sealed_value_is_found() -> None:
    sealed = SAFE.keyring.encrypt("hunter2", ABOUT)
    for place in range(len(sealed)):
        other = "A" if sealed[place] != "A" else "Q"
        changed = sealed[:place] + other + sealed[place + 1 :]
        try:
            opened = SAFE.keyring.decrypt(changed, ABOUT)
        except DecryptionError as error:
            assert "hunter2" not in str(error)
        else:
            # The last letter of base64 has bits that mean nothing.
            assert (opened, place) == ("hunter2", len(sealed) - 1)


@pytest.mark.parametrize("field", range(4))
def test_a_sealed_value_does_not_open_in_another_zone_table_row_or_field(field: int) -> None:
    sealed = SAFE.keyring.encrypt("hunter2", ABOUT)
    elsewhere = [*ABOUT]
    elsewhere[field] += "x"
    with pytest.raises(DecryptionError):
        SAFE.keyring.decrypt(sealed, (elsewhere[0], elsewhere[1], elsewhere[2], elsewhere[3]))


def test_where_one_name_ends_and_the_next_begins_makes_a_difference() -> None:
    sealed = SAFE.keyring.encrypt("hunter2", ("a|b", "c", "d", "e"))
    with pytest.raises(DecryptionError):
        SAFE.keyring.decrypt(sealed, ("a", "b|c", "d", "e"))


def test_another_key_of_the_same_name_does_not_open_it() -> None:
    sealed = safe_of(SecretKey("old", b"x" * 32)).keyring.encrypt("hunter2", ABOUT)
    with pytest.raises(DecryptionError):
        SAFE.keyring.decrypt(sealed, ABOUT)


@pytest.mark.parametrize("garbage", ["", "qs1", "qs1.new", "qs1.new..", "qs1.new.!.?", "qs2.new.AAAA.AAAA", "...."])
def test_garbage_does_not_open_and_does_not_fail_otherwise(garbage: str) -> None:
    with pytest.raises(DecryptionError):
        SAFE.keyring.decrypt(garbage, ABOUT)


def test_keys_are_told_by_commas_and_by_lines_in_either_base64() -> None:
    keys = [generate_key() for _ in range(3)]
    for text in (",".join(key.to_text() for key in keys), "\n".join(key.to_text() for key in keys) + "\n"):
        assert parse_keys(text) == keys
        assert parse_keys(text.replace("+", "-").replace("/", "_").replace("=", "")) == keys
    assert Keyring(keys).encryption_key_id == keys[0].id


@pytest.mark.parametrize(
    "told", ["", " , ", "hunter2", "a:hunter2", f"a b:{'x' * 43}=", "a:" + "A" * 42, "a.b:" + "A" * 43, ":" + "A" * 43]
)
def test_keys_that_cannot_be_are_refused_without_being_told(told: str) -> None:
    with pytest.raises(KeyringError) as refused:
        Keyring(parse_keys(told))
    assert "hunter2" not in str(refused.value)


def test_two_keys_of_one_name_are_refused() -> None:
    with pytest.raises(KeyringError):
        Keyring([OLD, SecretKey("old", b"x" * 32)])


def test_a_key_shows_its_name_and_no_more() -> None:
    assert repr(OLD) == "Key('old')"


# -- the safe


@given(values)
def test_a_sealed_text_opens_to_what_was_sent_and_is_masked_as_redaction_says(value: object) -> None:
    text = SAFE.encrypt(value, ABOUT)
    assert "\N{SNOWMAN}" not in text
    assert json.loads(SAFE.decrypt(text, ABOUT)) == value
    assert json.loads(SAFE.mask(text)) == redact(value)


def test_a_text_without_secrets_is_stored_as_it_is() -> None:
    value = {"max_tokens": 5, "text": 'say {"$sealed":"qs1.new.a.b"} or "password":"x"'}
    text = SAFE.encrypt(value, ABOUT)
    assert text == msgspec.json.encode(value).decode()
    assert SAFE.decrypt(text, ABOUT) == text
    assert SAFE.mask(text) == text


@pytest.mark.parametrize("value", [{"a": {"$sealed": "qs1.new.AA.AA"}}, [{"$secret": 1}], {"$sealed": {}}])
def test_what_is_ours_cannot_be_sent(value: object) -> None:
    with pytest.raises(Invalid):
        SAFE.encrypt(value, ABOUT)


def test_a_value_holds_so_many_secrets_and_no_more() -> None:
    most = [{"token": "x"}] * SECRETS_MAX
    assert len(key_ids_in(SAFE.encrypt(most, ABOUT))) == SECRETS_MAX
    with pytest.raises(Invalid) as refused:
        SAFE.encrypt([*most, {"token": "x"}], ABOUT)
    assert refused.value.code == "too_many_secrets"


def test_a_value_that_does_not_open_is_masked_counted_and_logged_without_its_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = safe_of(OLD).encrypt({"password": "hunter2", "n": 1}, ABOUT)
    without = safe_of(NEW)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert json.loads(without.decrypt(text, ABOUT)) == {"password": "***", "n": 1}
    assert without.decryption_failures == 3
    [line] = caplog.messages
    assert "'old'" in line
    assert "hunter2" not in line
    assert text not in line


def test_a_row_that_was_swapped_with_another_opens_nothing() -> None:
    text = SAFE.encrypt({"password": "hunter2"}, ABOUT)
    assert json.loads(safe_of(NEW).decrypt(text, ("zone", "agent_tasks", "t2", "input_context"))) == {"password": "***"}


def test_sealing_anew_moves_every_value_to_the_key_that_seals_and_changes_nothing_else() -> None:
    value = {"password": "hunter2", "more": [{"$secret": "x"}], "plain": "password"}
    text = safe_of(OLD).encrypt(value, ABOUT)
    anew = SAFE.reencrypt(text, ABOUT)
    assert key_ids_in(text) == ["old", "old"]
    assert key_ids_in(anew) == ["new", "new"]
    assert json.loads(safe_of(NEW).decrypt(anew, ABOUT)) == value
    assert SAFE.reencrypt(anew, ABOUT) == anew
    assert safe_of(NEW).reencrypt(text, ABOUT) == text, "what does not open stays as it is"


def test_an_error_that_quotes_the_secrets_of_its_task_is_told_without_them() -> None:
    text = SAFE.encrypt({"login": {"$secret": "hunter2!"}, "n": 1}, ABOUT)
    assert SAFE.redact("login failed for hunter2!", [(text, ABOUT)]) == "login failed for ***"
    assert SAFE.redact("login failed for hunter3", [(text, ABOUT)]) == "login failed for hunter3"


class Asked(msgspec.Struct):
    said: dict[str, object]


def test_the_digest_of_what_holds_secrets_cannot_be_guessed_without_the_pepper() -> None:
    holds, plain = Asked({"password": "1234"}), Asked({"n": 1})
    other = FieldCipher(SAFE.keyring, b"q" * 32)
    assert SAFE.digest(holds) == safe_of(OLD).digest(holds) != other.digest(holds)
    assert SAFE.digest(holds) != SAFE.digest(Asked({"password": "1235"}))
    assert SAFE.digest(plain) == other.digest(plain)
