"""Keyring and field encryption: a value decrypts only in its own field, and a value that fails to decrypt is masked."""

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

OLD_KEY, NEW_KEY = SecretKey("old", b"o" * 32), SecretKey("new", b"n" * 32)
FIELD: FieldRef = ("zone", "agent_tasks", "t1", "input_context")
PEPPER = b"p" * 32


def cipher_with(*keys: SecretKey) -> FieldCipher:
    return FieldCipher(Keyring(keys), PEPPER)


CIPHER = cipher_with(NEW_KEY, OLD_KEY)


# -- keyring


@given(st.text(st.characters(codec="utf-8")))
def test_encrypted_value_decrypts_to_the_original(plaintext: str) -> None:
    encrypted = CIPHER.keyring.encrypt(plaintext, FIELD)
    assert encrypted.startswith("qs1.new.")
    assert CIPHER.keyring.decrypt(encrypted, FIELD) == plaintext


def test_same_value_is_never_encrypted_alike_twice() -> None:
    assert len({CIPHER.keyring.encrypt("hunter2", FIELD) for _ in range(100)}) == 100


def test_every_changed_character_of_an_encrypted_value_is_detected() -> None:
    encrypted = CIPHER.keyring.encrypt("hunter2", FIELD)
    for index in range(len(encrypted)):
        other = "A" if encrypted[index] != "A" else "Q"
        changed = encrypted[:index] + other + encrypted[index + 1 :]
        try:
            decrypted = CIPHER.keyring.decrypt(changed, FIELD)
        except DecryptionError as error:
            assert "hunter2" not in str(error)
        else:
            # The last base64 character has unused bits.
            assert (decrypted, index) == ("hunter2", len(encrypted) - 1)


@pytest.mark.parametrize("part", range(4))
def test_encrypted_value_does_not_decrypt_in_another_zone_table_row_or_field(part: int) -> None:
    encrypted = CIPHER.keyring.encrypt("hunter2", FIELD)
    other_field = [*FIELD]
    other_field[part] += "x"
    with pytest.raises(DecryptionError):
        CIPHER.keyring.decrypt(encrypted, (other_field[0], other_field[1], other_field[2], other_field[3]))


def test_boundaries_between_the_parts_of_a_field_ref_are_authenticated() -> None:
    encrypted = CIPHER.keyring.encrypt("hunter2", ("a|b", "c", "d", "e"))
    with pytest.raises(DecryptionError):
        CIPHER.keyring.decrypt(encrypted, ("a", "b|c", "d", "e"))


def test_another_key_with_the_same_id_does_not_decrypt() -> None:
    encrypted = cipher_with(SecretKey("old", b"x" * 32)).keyring.encrypt("hunter2", FIELD)
    with pytest.raises(DecryptionError):
        CIPHER.keyring.decrypt(encrypted, FIELD)


@pytest.mark.parametrize("garbage", ["", "qs1", "qs1.new", "qs1.new..", "qs1.new.!.?", "qs2.new.AAAA.AAAA", "...."])
def test_garbage_fails_with_decryption_error(garbage: str) -> None:
    with pytest.raises(DecryptionError):
        CIPHER.keyring.decrypt(garbage, FIELD)


def test_keys_are_separated_by_commas_or_lines_in_either_base64() -> None:
    keys = [generate_key() for _ in range(3)]
    for text in (",".join(key.to_text() for key in keys), "\n".join(key.to_text() for key in keys) + "\n"):
        assert parse_keys(text) == keys
        assert parse_keys(text.replace("+", "-").replace("/", "_").replace("=", "")) == keys
    assert Keyring(keys).encryption_key_id == keys[0].id


@pytest.mark.parametrize(
    "text", ["", " , ", "hunter2", "a:hunter2", f"a b:{'x' * 43}=", "a:" + "A" * 42, "a.b:" + "A" * 43, ":" + "A" * 43]
)
def test_invalid_keys_are_refused_without_showing_them(text: str) -> None:
    with pytest.raises(KeyringError) as refused:
        Keyring(parse_keys(text))
    assert "hunter2" not in str(refused.value)


def test_two_keys_with_one_id_are_refused() -> None:
    with pytest.raises(KeyringError):
        Keyring([OLD_KEY, SecretKey("old", b"x" * 32)])


def test_repr_of_a_key_shows_only_its_id() -> None:
    assert repr(OLD_KEY) == "SecretKey('old')"


# -- field cipher


@given(values)
def test_encrypted_json_decrypts_to_the_value_and_masks_like_redaction(value: object) -> None:
    text = CIPHER.encrypt(value, FIELD)
    assert "\N{SNOWMAN}" not in text
    assert json.loads(CIPHER.decrypt(text, FIELD)) == value
    assert json.loads(CIPHER.mask(text)) == redact(value)


def test_value_without_secrets_is_stored_unchanged() -> None:
    value = {"max_tokens": 5, "text": 'say {"$sealed":"qs1.new.a.b"} or "password":"x"'}
    text = CIPHER.encrypt(value, FIELD)
    assert text == msgspec.json.encode(value).decode()
    assert CIPHER.decrypt(text, FIELD) == text
    assert CIPHER.mask(text) == text


@pytest.mark.parametrize("value", [{"a": {"$sealed": "qs1.new.AA.AA"}}, [{"$secret": 1}], {"$sealed": {}}])
def test_reserved_members_are_refused_in_a_value(value: object) -> None:
    with pytest.raises(Invalid):
        CIPHER.encrypt(value, FIELD)


def test_number_of_secrets_in_a_value_is_limited() -> None:
    maximum = [{"token": "x"}] * SECRETS_MAX
    assert len(key_ids_in(CIPHER.encrypt(maximum, FIELD))) == SECRETS_MAX
    with pytest.raises(Invalid) as refused:
        CIPHER.encrypt([*maximum, {"token": "x"}], FIELD)
    assert refused.value.code == "too_many_secrets"


def test_undecryptable_value_is_masked_counted_and_logged_without_content(caplog: pytest.LogCaptureFixture) -> None:
    text = cipher_with(OLD_KEY).encrypt({"password": "hunter2", "n": 1}, FIELD)
    without_key = cipher_with(NEW_KEY)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert json.loads(without_key.decrypt(text, FIELD)) == {"password": "***", "n": 1}
    assert without_key.decryption_failures == 3
    [line] = caplog.messages
    assert "'old'" in line
    assert "hunter2" not in line
    assert text not in line


def test_value_copied_to_another_row_is_masked() -> None:
    text = CIPHER.encrypt({"password": "hunter2"}, FIELD)
    assert json.loads(cipher_with(NEW_KEY).decrypt(text, ("zone", "agent_tasks", "t2", "input_context"))) == {
        "password": "***"
    }


def test_reencrypt_moves_every_secret_to_the_encryption_key_and_nothing_else() -> None:
    value = {"password": "hunter2", "more": [{"$secret": "x"}], "plain": "password"}
    text = cipher_with(OLD_KEY).encrypt(value, FIELD)
    reencrypted = CIPHER.reencrypt(text, FIELD)
    assert key_ids_in(text) == ["old", "old"]
    assert key_ids_in(reencrypted) == ["new", "new"]
    assert json.loads(cipher_with(NEW_KEY).decrypt(reencrypted, FIELD)) == value
    assert CIPHER.reencrypt(reencrypted, FIELD) == reencrypted
    assert cipher_with(NEW_KEY).reencrypt(text, FIELD) == text, "a value that does not decrypt is unchanged"


def test_redact_removes_the_secrets_of_a_task_from_an_error() -> None:
    text = CIPHER.encrypt({"login": {"$secret": "hunter2!"}, "n": 1}, FIELD)
    assert CIPHER.redact("login failed for hunter2!", [(text, FIELD)]) == "login failed for ***"
    assert CIPHER.redact("login failed for hunter3", [(text, FIELD)]) == "login failed for hunter3"


class Body(msgspec.Struct):
    payload: dict[str, object]


def test_digest_of_a_value_with_secrets_depends_on_the_pepper() -> None:
    with_secret, without_secret = Body({"password": "1234"}), Body({"n": 1})
    other_cipher = FieldCipher(CIPHER.keyring, b"q" * 32)
    assert CIPHER.digest(with_secret) == cipher_with(OLD_KEY).digest(with_secret) != other_cipher.digest(with_secret)
    assert CIPHER.digest(with_secret) != CIPHER.digest(Body({"password": "1235"}))
    assert CIPHER.digest(without_secret) == other_cipher.digest(without_secret)
