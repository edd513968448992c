"""Rules of API keys: text format, authentication, creation and limits. Also the format of `traceparent`."""

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


def key(**fields: object) -> ApiKey:
    defaults: dict[str, object] = {
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
    row = defaults | fields
    return msgspec.convert([row[name] for name in ApiKey.__struct_fields__], ApiKey)


def create_command(**fields: object) -> CreateKey:
    defaults: dict[str, object] = {
        "id": new_id(),
        "zone_id": "z",
        "digest": "d",
        "name": "name",
        "application_id": "app",
        "scopes": "a",
        "actor": "tester",
    }
    return msgspec.convert(defaults | fields, CreateKey)


def batch_input(
    used: int = 0, sessions: Collection[tuple[str, str]] = (), ended: Problem | None = None
) -> KeyBatchInput:
    return KeyBatchInput(NOW, {"z": ended, "y": None}, {"z": used}, sessions)


# -- format ------------------------------------------------------------------------------------------------------


@given(ZONES, st.binary(min_size=32, max_size=32))
def test_formatted_key_parses_to_its_zone_id_and_digest(zone: str, secret: bytes) -> None:
    key_id = new_id()
    text = api_key.format_key(zone, key_id, secret).encode()
    parsed = api_key.parse(text)
    assert parsed is not None
    assert (parsed.zone_id, parsed.id, parsed.digest) == (zone, key_id, api_key.digest(text))
    assert secret.hex() not in repr(parsed)


@given(st.binary(max_size=400))
def test_parsing_any_other_bytes_returns_none(text: bytes) -> None:
    assert api_key.parse(text) is None


VALID_KEY = api_key.format_key("z", "0198f3a2-7c41-7b1e-9d52-3f6a8c0e41d7", SECRET).encode()


@pytest.mark.parametrize(
    "text",
    [
        VALID_KEY + b"\n",
        VALID_KEY + b" ",
        b" " + VALID_KEY,
        VALID_KEY[:-1],
        VALID_KEY + b"0",
        VALID_KEY.upper(),
        VALID_KEY.replace(b"qd_z", b"qd_"),
        VALID_KEY.replace(b"qd_z", b"qd_" + b"z" * 129),
        VALID_KEY.replace(b"qd_z", b"qd_z/../y"),
        VALID_KEY.replace(b"qd_z", b"qd_z,y"),
        VALID_KEY.replace(b"qd_z", "qd_ż".encode()),
        VALID_KEY.replace(b"qd_", b"sk_"),
        VALID_KEY + b", " + VALID_KEY,
        VALID_KEY * 1000,
        b"",
    ],
)
def test_only_the_exact_form_of_a_key_is_parsed(text: bytes) -> None:
    assert api_key.parse(VALID_KEY) is not None
    assert api_key.parse(text) is None


def test_digest_covers_zone_and_key_id() -> None:
    texts = [api_key.format_key(zone, key_id, SECRET) for zone in ("a", "b") for key_id in ("k", "l")]
    assert len({api_key.digest(text.encode()) for text in texts}) == 4


# -- authentication ----------------------------------------------------------------------------------------------


def test_live_key_gives_a_caller_with_its_application_zone_and_scopes() -> None:
    key_caller = rules.caller_of_key("d", key(session_id="s"), "d", NOW)
    assert key_caller == Caller(
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
    ("digest", "stored", "stored_digest"),
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
def test_unknown_wrong_revoked_and_expired_keys_get_the_same_error(
    digest: str, stored: ApiKey | None, stored_digest: str
) -> None:
    refused = rules.caller_of_key(digest, stored, stored_digest, NOW)
    assert isinstance(refused, Unauthenticated)
    expected = api_key.invalid_key_error()
    assert (refused.code, refused.detail, refused.members) == (expected.code, expected.detail, expected.members)


def test_key_is_valid_until_expires_at() -> None:
    assert isinstance(rules.caller_of_key("d", key(expires_at=NOW + 1), "d", NOW), Caller)


def test_admin_scope_in_a_stored_key_is_ignored() -> None:
    key_caller = rules.caller_of_key("d", key(scopes=f"a {ADMIN} b"), "d", NOW)
    assert isinstance(key_caller, Caller)
    assert (key_caller.scopes, key_caller.is_admin) == (frozenset({"a", "b"}), False)


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
def test_key_view_has_the_current_status(stored: ApiKey, status: str) -> None:
    assert rules.view(stored, NOW).status == status


# -- creation ----------------------------------------------------------------------------------------------------


def test_created_key_has_the_requested_ttl() -> None:
    permanent, expiring = rules.admit([create_command(), create_command(ttl_seconds=2)], batch_input())
    assert isinstance(permanent, ApiKey) and isinstance(expiring, ApiKey)
    assert (permanent.expires_at, expiring.expires_at) == (None, NOW + 2_000)
    assert (permanent.created_at, permanent.created_by, permanent.revoked_at) == (NOW, "tester", None)


@pytest.mark.parametrize("used", [KEYS_MAX - 2, KEYS_MAX - 1, KEYS_MAX, KEYS_MAX + 5])
def test_zone_admits_keys_up_to_its_limit_and_refusals_do_not_count(used: int) -> None:
    commands = [
        create_command(session_id="unknown"),
        *(create_command() for _ in range(4)),
        create_command(zone_id="y"),
    ]
    outcomes = rules.admit(commands, batch_input(used))
    is_created = [isinstance(outcome, ApiKey) for outcome in outcomes]
    free = max(0, KEYS_MAX - used)
    assert is_created == [False, *(index < free for index in range(4)), True]
    for refused in outcomes[1 + free : 5]:
        assert isinstance(refused, LimitReached)
        assert refused.members["limit"] == KEYS_MAX
        assert refused.members["used"] == used + min(free, 4)
        assert refused.members["bound"] == "max_keys"
        assert refused.members["frees"]


def test_key_is_created_only_for_a_live_session_of_its_zone() -> None:
    sessions = {("z", "s"), ("y", "t")}
    bound, foreign, absent = rules.admit(
        [create_command(session_id="s"), create_command(session_id="t"), create_command(session_id="u")],
        batch_input(sessions=sessions),
    )
    assert isinstance(bound, ApiKey)
    for refused, session_id in ((foreign, "t"), (absent, "u")):
        assert isinstance(refused, NotFound)
        assert refused.detail.replace(repr(session_id), "?") == rules.live_session_not_found("?").detail.replace(
            "'?'", "?"
        )


def test_ended_zone_refuses_new_keys() -> None:
    [refused] = rules.admit([create_command()], batch_input(ended=zone_ended("z")))
    assert isinstance(refused, Problem) and refused.code == "zone_ended"


def test_scopes_are_deduplicated_and_the_admin_scope_is_refused() -> None:
    assert rules.normalize_scopes(["b", "a", "b"]) == "b a"
    with pytest.raises(Invalid) as refusal:
        rules.normalize_scopes(["a", ADMIN])
    assert refusal.value.members["field"] == "scopes"


@pytest.mark.parametrize(
    "scope", ["", "a b", "a\n", "a\tb", '"', "\\", "ż", "a" * 129, f"{ADMIN} ", f"x {ADMIN}", "\x7f"]
)
def test_scope_must_be_a_single_token(scope: str) -> None:
    body = {"application_id": "app", "scopes": [scope]}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(body, CreateKeyBody)


@pytest.mark.parametrize(
    "fields",
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
def test_fields_of_a_key_request_are_bounded(fields: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"application_id": "app", **fields}, CreateKeyBody)


# -- traceparent -------------------------------------------------------------------------------------------------

IDS = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "parsed"),
    [
        (f"00-{IDS}-01", f"00-{IDS}-01"),
        (f"00-{IDS}-00", f"00-{IDS}-00"),
        (f"cc-{IDS}-01", f"00-{IDS}-01"),
        (f"cc-{IDS}-01-future-field", f"00-{IDS}-01"),
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
def test_traceparent_is_parsed_by_the_w3c_rules_or_ignored(header: str, parsed: str | None) -> None:
    assert trace_context.parse_traceparent(header) == parsed
    if parsed is not None:
        assert trace_context.trace_id_of(parsed) == IDS[:32]
