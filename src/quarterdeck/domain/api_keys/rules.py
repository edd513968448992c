"""The pure rules for API keys: admission, authentication, errors and views."""

from __future__ import annotations

import hmac
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core import api_key
from quarterdeck.core.caller import ADMIN, Caller
from quarterdeck.core.clock import SECOND, Millis, iso, iso_or_none
from quarterdeck.core.errors import Invalid, LimitReached, NotFound, Problem, Unauthenticated
from quarterdeck.domain.api_keys.model import KEYS_MAX, ApiKey, CreateKey, KeyView, NewKeyView

LIVE, REVOKED, EXPIRED = "live", "revoked", "expired"
NO_DIGEST = "0" * 64
"""A placeholder for the digest of a missing key. No key has this digest."""


# -- admission ---------------------------------------------------------------------------------------------------


def normalize_scopes(scopes: Sequence[str]) -> str:
    """Remove duplicates and join the scopes with spaces, for storage. Raises Invalid for the admin scope."""
    if ADMIN in scopes:
        raise Invalid(
            "invalid_scope",
            f"A key cannot have the scope {ADMIN}, because a key is valid in one zone only. Use a token instead.",
            field="scopes",
        )
    return " ".join(dict.fromkeys(scopes))


@dataclass(frozen=True, slots=True)
class KeyBatchInput:
    """The data loaded for a batch, under the zones' locks."""

    now: Millis
    zone_problems: Mapping[str, Problem | None]
    """For each locked zone, the problem that prevents new keys, or None."""
    live_key_counts: Mapping[str, int]
    """The number of live keys, by zone."""
    live_sessions: Collection[tuple[str, str]]
    """The live sessions among those that the commands name, as (zone, id)."""


def admit(commands: Sequence[CreateKey], loaded: KeyBatchInput) -> list[ApiKey | Problem]:
    """Decide the commands in order. A key that a command creates counts against the limit for the commands after it."""
    new_key_counts: dict[str, int] = {}
    outcomes: list[ApiKey | Problem] = []
    for command in commands:
        used = loaded.live_key_counts.get(command.zone_id, 0) + new_key_counts.get(command.zone_id, 0)
        problem = _creation_problem(command, loaded, used)
        if problem is None:
            new_key_counts[command.zone_id] = new_key_counts.get(command.zone_id, 0) + 1
        outcomes.append(problem or _new_key(command, loaded.now))
    return outcomes


def _creation_problem(command: CreateKey, loaded: KeyBatchInput, used: int) -> Problem | None:
    if problem := loaded.zone_problems[command.zone_id]:
        return problem
    if command.session_id is not None and (command.zone_id, command.session_id) not in loaded.live_sessions:
        return live_session_not_found(command.session_id)
    return key_limit_exceeded(used) if used >= KEYS_MAX else None


def _new_key(command: CreateKey, now: Millis) -> ApiKey:
    return ApiKey(
        zone_id=command.zone_id,
        id=command.id,
        name=command.name,
        application_id=command.application_id,
        scopes=command.scopes,
        session_id=command.session_id,
        created_by=command.actor,
        created_at=now,
        expires_at=None if command.ttl_seconds is None else now + command.ttl_seconds * SECOND,
        revoked_at=None,
    )


# -- authentication ----------------------------------------------------------------------------------------------


def status(key: ApiKey, now: Millis) -> str:
    if key.revoked_at is not None:
        return REVOKED
    return LIVE if key.expires_at is None or key.expires_at > now else EXPIRED


def caller_of_key(
    presented_digest: str, key: ApiKey | None, stored_digest: str, now: Millis
) -> Caller | Unauthenticated:
    """The caller that a presented key identifies. `key` and `stored_digest` are stored for its zone and id."""
    # The digests are compared even if no key has this id, so that the response time does not reveal which ids exist.
    is_same_digest = hmac.compare_digest(presented_digest.encode(), stored_digest.encode())
    if key is None or not is_same_digest or status(key, now) != LIVE:
        return api_key.invalid_key_error()
    subject = f"key:{key.id}"
    return Caller(
        subject=subject,
        client_id=key.application_id,
        zone_id=key.zone_id,
        # ADMIN is removed here too, in case a row was written directly to the database.
        scopes=frozenset(key.scopes.split(" ")) - {ADMIN, ""},
        sid=subject,
        session_id=key.session_id,
        is_local=True,
    )


# -- errors ------------------------------------------------------------------------------------------------------


def key_not_found(key_id: str) -> NotFound:
    return NotFound("key_not_found", f"Key {key_id!r} does not exist in this zone.")


def live_session_not_found(session_id: str) -> NotFound:
    return NotFound("agent_not_found", f"Session {session_id!r} is not a live session in this zone.")


def key_limit_exceeded(used: int) -> LimitReached:
    return LimitReached(
        "key_limit_exceeded",
        f"The zone has {used} of at most {KEYS_MAX} live keys. Revoke one first.",
        bound="max_keys",
        limit=KEYS_MAX,
        used=used,
        frees="a key of the zone is revoked or expires",
    )


# -- views -------------------------------------------------------------------------------------------------------


def view(key: ApiKey, now: Millis) -> KeyView:
    return KeyView(
        id=key.id,
        zone_id=key.zone_id,
        name=key.name,
        application_id=key.application_id,
        scopes=key.scopes.split(" "),
        session_id=key.session_id,
        status=status(key, now),
        created_by=key.created_by,
        created_at=iso(key.created_at),
        expires_at=iso_or_none(key.expires_at),
        revoked_at=iso_or_none(key.revoked_at),
    )


def new_key_view(key: ApiKey, key_text: str) -> NewKeyView:
    """The view of a new key, with its secret."""
    base = view(key, key.created_at)
    return NewKeyView(**{name: getattr(base, name) for name in KeyView.__struct_fields__}, key=key_text)
