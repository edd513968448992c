"""API keys, the pure part: their form, who is let in by one, and how many a zone may have. And the form of a trace."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core import api_key, trace_context
from quarterdeck.core.caller import ADMIN, Caller
from quarterdeck.core.errors import Invalid, LimitReached, NotFound, Problem, Unauthenticated
from quarterdeck.core.ids import new_id
from quarterdeck.domain.api_keys import rules
from quarterdeck.domain.api_keys.model import KEYS_MAX, ApiKey, CreateKey, CreateKeyBody
from quarterdeck.domain.api_keys.rules import KeyBatchInput
from quarterdeck.domain.zones.rules import zone_ended

NOW = 1_000_000
SECRET = bytes(range(32))
ZONES = st.from_regex(r"[A-Za-z0-9_.\-:]{1,128}", fullmatch=True)


def key(**stored: object) -> ApiKey:
    plain: dict[str, object] = {
        "zone_id": "z",
        "id": "k",
        "name": "name",
        "application_id": "app",
        "scopes": "a b",
        "session_id": None,
        "created_by": "tester",
        "created_at": NOW - 1,
        "expires_at": None,
        "revoked_at": None,
    }
    row = plain | stored
    return msgspec.convert([row[name] for name in ApiKey.__struct_fields__], ApiKey)


def ask(**asked: object) -> CreateKey:
    plain: dict[str, object] = {
        "id": new_id(),
        "zone_id": "z",
        "digest": "d",
        "name": "name",
        "application_id": "app",
        "scopes": "a",
        "actor": "tester",
    }
    return msgspec.convert(plain | asked, CreateKey)


def known(used: int = 0, sessions: Collection[tuple[str, str]] = (), ended: Problem | None = None) -> KeyBatchInput:
    return KeyBatchInput(NOW, {"z": ended, "y": None}, {"z": used}, sessions)


# -- the form ----------------------------------------------------------------------------------------------------


@given(ZONES, st.binary(min_size=32, max_size=32))
def test_a_key_is_read_as_it_was_spelt_whatever_its_zone_is_called(zone: str, secret: bytes) -> None:
    key_id = new_id()
    text = api_key.format_key(zone, key_id, secret).encode()
    shown = api_key.parse(text)
    assert shown is not None
    assert (shown.zone_id, shown.id, shown.digest) == (zone, key_id, api_key.digest(text))
    assert secret.hex() not in repr(shown)


@given(st.binary(max_size=400))
def test_what_is_no_key_is_read_as_none_and_never_fails(text: bytes) -> None:
    assert api_key.parse(text) is None


GOOD = api_key.format_key("z", "0198f3a2-7c41-7b1e-9d52-3f6a8c0e41d7", SECRET).encode()


@pytest.mark.parametrize(
    "text",
    [
        GOOD + b"\n",
        GOOD + b" ",
        b" " + GOOD,
        GOOD[:-1],
        GOOD + b"0",
        GOOD.upper(),
        GOOD.replace(b"qd_z", b"qd_"),
        GOOD.replace(b"qd_z", b"qd_" + b"z" * 129),
        GOOD.replace(b"qd_z", b"qd_z/../y"),
        GOOD.replace(b"qd_z", b"qd_z,y"),
        GOOD.replace(b"qd_z", "qd_ż".encode()),
        GOOD.replace(b"qd_", b"sk_"),
        GOOD + b", " + GOOD,
        GOOD * 1000,
        b"",
    ],
)
def test_a_key_has_one_spelling(text: bytes) -> None:
    assert api_key.parse(GOOD) is not None
    assert api_key.parse(text) is None


def test_the_digest_is_of_the_whole_key_so_that_a_row_opens_nothing_elsewhere() -> None:
    texts = [api_key.format_key(zone, key_id, SECRET) for zone in ("a", "b") for key_id in ("k", "l")]
    assert len({api_key.digest(text.encode()) for text in texts}) == 4


# -- who is let in -----------------------------------------------------------------------------------------------


def test_a_live_key_speaks_for_its_application_in_its_zone_with_its_scopes() -> None:
    found = rules.caller_of_key("d", key(session_id="s"), "d", NOW)
    assert found == Caller(
        subject="key:k",
        client_id="app",
        zone_id="z",
        scopes=frozenset({"a", "b"}),
        sid="key:k",
        session_id="s",
        is_admin=False,
        is_local=True,
    )


@pytest.mark.parametrize(
    ("shown", "stored", "digest"),
    [
        ("d", None, rules.NO_DIGEST),
        (rules.NO_DIGEST, None, rules.NO_DIGEST),
        ("d", key(), "e"),
        ("", key(), "d"),
        ("d", key(), "ż"),
        ("d", key(revoked_at=NOW), "d"),
        ("d", key(revoked_at=NOW + 1), "d"),
        ("d", key(expires_at=NOW), "d"),
        ("d", key(expires_at=NOW - 1), "d"),
    ],
)
def test_unknown_wrong_revoked_and_expired_keys_are_refused_in_the_same_words(
    shown: str, stored: ApiKey | None, digest: str
) -> None:
    refused = rules.caller_of_key(shown, stored, digest, NOW)
    assert isinstance(refused, Unauthenticated)
    plain = api_key.invalid_key_error()
    assert (refused.code, refused.detail, refused.members) == (plain.code, plain.detail, plain.members)


def test_a_key_expires_at_its_instant_and_not_before() -> None:
    assert isinstance(rules.caller_of_key("d", key(expires_at=NOW + 1), "d", NOW), Caller)


def test_the_scope_that_crosses_zones_is_struck_out_should_it_stand_in_a_row() -> None:
    found = rules.caller_of_key("d", key(scopes=f"a {ADMIN} b"), "d", NOW)
    assert isinstance(found, Caller)
    assert (found.scopes, found.is_admin) == (frozenset({"a", "b"}), False)


@pytest.mark.parametrize(
    ("stored", "status"),
    [
        (key(), "live"),
        (key(expires_at=NOW + 1), "live"),
        (key(expires_at=NOW), "expired"),
        (key(revoked_at=1), "revoked"),
        (key(revoked_at=1, expires_at=NOW), "revoked"),
    ],
)
def test_a_key_is_shown_with_what_it_is_now(stored: ApiKey, status: str) -> None:
    assert rules.view(stored, NOW).status == status


# -- which keys may be made --------------------------------------------------------------------------------------


def test_a_made_key_has_what_was_asked_for_and_ends_when_it_was_told_to() -> None:
    lasting, brief = rules.admit([ask(), ask(ttl_seconds=2)], known())
    assert isinstance(lasting, ApiKey) and isinstance(brief, ApiKey)
    assert (lasting.expires_at, brief.expires_at) == (None, NOW + 2_000)
    assert (lasting.created_at, lasting.created_by, lasting.revoked_at) == (NOW, "tester", None)


@pytest.mark.parametrize("used", [KEYS_MAX - 2, KEYS_MAX - 1, KEYS_MAX, KEYS_MAX + 5])
def test_a_zone_is_filled_to_its_bound_and_not_beyond_and_a_refusal_takes_no_place(used: int) -> None:
    asks = [ask(session_id="nowhere"), *(ask() for _ in range(4)), ask(zone_id="y")]
    outcomes = rules.admit(asks, known(used))
    made = [isinstance(outcome, ApiKey) for outcome in outcomes]
    room = max(0, KEYS_MAX - used)
    assert made == [False, *(place < room for place in range(4)), True]
    for refused in outcomes[1 + room : 5]:
        assert isinstance(refused, LimitReached)
        assert refused.members["limit"] == KEYS_MAX
        assert refused.members["used"] == used + min(room, 4)
        assert refused.members["bound"] == "max_keys"
        assert refused.members["frees"]


def test_a_key_is_bound_to_a_live_session_of_its_own_zone_or_not_made() -> None:
    sessions = {("z", "s"), ("y", "t")}
    bound, foreign, absent = rules.admit(
        [ask(session_id="s"), ask(session_id="t"), ask(session_id="u")], known(sessions=sessions)
    )
    assert isinstance(bound, ApiKey)
    for refused, asked in ((foreign, "t"), (absent, "u")):
        assert isinstance(refused, NotFound)
        assert refused.detail.replace(repr(asked), "?") == rules.live_session_not_found("?").detail.replace("'?'", "?")


def test_a_zone_that_has_ended_gets_no_keys() -> None:
    [refused] = rules.admit([ask()], known(ended=zone_ended("z")))
    assert isinstance(refused, Problem) and refused.code == "zone_ended"


def test_scopes_are_kept_once_each_and_never_the_one_that_crosses_zones() -> None:
    assert rules.normalize_scopes(["b", "a", "b"]) == "b a"
    with pytest.raises(Invalid) as refusal:
        rules.normalize_scopes(["a", ADMIN])
    assert refusal.value.members["field"] == "scopes"


@pytest.mark.parametrize(
    "scope", ["", "a b", "a\n", "a\tb", '"', "\\", "ż", "a" * 129, f"{ADMIN} ", f"x {ADMIN}", "\x7f"]
)
def test_a_scope_is_one_plain_word_so_that_two_never_hide_in_one(scope: str) -> None:
    body = {"application_id": "app", "scopes": [scope]}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, CreateKeyBody)


@pytest.mark.parametrize(
    "asked",
    [
        {"scopes": []},
        {"scopes": ["a"] * 33},
        {"name": ""},
        {"name": "n" * 201},
        {"ttl_seconds": 0},
        {"ttl_seconds": 10**10},
        {"ttl_seconds": 1.5},
        {"session_id": "a/b"},
        {"application_id": "a b"},
    ],
)
def test_everything_that_is_asked_of_a_key_is_bounded(asked: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"application_id": "app", **asked}, CreateKeyBody)


# -- a trace -----------------------------------------------------------------------------------------------------

IDS = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (f"00-{IDS}-01", f"00-{IDS}-01"),
        (f"00-{IDS}-00", f"00-{IDS}-00"),
        (f"cc-{IDS}-01", f"00-{IDS}-01"),
        (f"cc-{IDS}-01-what-comes-later", f"00-{IDS}-01"),
        (f"01-{IDS}-01-", f"00-{IDS}-01"),
        (f"00-{IDS}-01-more", None),
        (f"00-{IDS}-01-", None),
        (f"cc-{IDS}-01.more", None),
        (f"ff-{IDS}-01", None),
        (f"0-{IDS}-01", None),
        (f"00-{IDS.upper()}-01", None),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", None),
        (f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01", None),
        (f"00-{IDS}", None),
        (f"00-{IDS}-1", None),
        (f"00-{IDS}-01\n", None),
        (f" 00-{IDS}-01", None),
        (f"cc-{IDS}-01-\n", None),
        (f"cc-{IDS}-01-{'x' * 1000}", None),
        ("", None),
    ],
)
def test_a_traceparent_is_kept_as_its_standard_says_or_ignored(header: str, kept: str | None) -> None:
    assert trace_context.parse_traceparent(header) == kept
    if kept is not None:
        assert trace_context.trace_id_of(kept) == IDS[:32]
