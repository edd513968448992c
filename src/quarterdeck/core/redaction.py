"""What of a JSON value is secret, and how the rest is told without it.

Two things are secret, both only as strings: what stands in an object `{"$secret": "…"}`, which says so itself; and the
value of a key whose whole name is in `NAMES`. Names are compared without regard to case, and between their words may
stand `_`, `-` or nothing: `api_key`, `API-Key` and `apiKey` are one name, `max_tokens` and `tokens` are none of them.
Whoever has a secret under another name wraps it in `{"$secret": …}`; whoever has none under one of these names loses
nothing but its sight.

`$secret` beside other keys, or around something else than a string, is refused: whoever wrote it meant a secret, and it
would be kept in the clear. `$sealed` is how a secret is stored, and is refused from outside, or what somebody made up
would be taken for it.

Free text (an error, a stack trace) has no keys. Out of it are struck the values that are known to be secret, and what
says itself that it is one (`STATED`): `password=…`, `"token": "…"`, `Bearer …`, the password of a URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from quarterdeck.core.errors import Invalid

SECRET_MARKER = "$secret"  # noqa: S105 - a key, no secret
ENCRYPTED_MARKER = "$sealed"
MASK = "***"
DEPTH_MAX = 80
"""Deeper than what the shell lets in, with room for what sealing adds; what is deeper was never let in."""
SECRETS_MAX = 256
"""In one JSON value: each is sealed for itself, and looked for in every error of its task."""
SECRET_LENGTH_MIN = 4
"""Shorter values are not struck out of text: `a` is in every sentence, and whoever sees the gaps knows the secret."""
SECRET_NAMES = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "access_token", "refresh_token", "id_token",
    "auth_token", "bearer_token", "session_token", "api_token", "attempt_token", "api_key", "x_api_key", "api_secret",
    "access_key", "secret_key", "secret_access_key", "aws_secret_access_key", "private_key", "signing_key",
    "encryption_key", "ssh_key", "client_secret", "webhook_secret", "authorization", "proxy_authorization", "cookie",
    "set_cookie", "credential", "credentials", "connection_string", "jwt",
)  # fmt: skip
"""Published: `docs/secrets.md` shows it, and a test holds the two together."""

Path = tuple[str | int, ...]


def _names_pattern() -> str:
    """All names as one pattern, those with the same beginning together: it is tried at every key of every value."""
    suffixes_by_letter: dict[str, list[str]] = {}
    for name in sorted(SECRET_NAMES):
        suffixes_by_letter.setdefault(name[0], []).append(name[1:].replace("_", "[-_]?"))
    return "|".join(f"{letter}(?:{'|'.join(suffixes)})" for letter, suffixes in sorted(suffixes_by_letter.items()))


_NAME = re.compile(_names_pattern(), re.IGNORECASE | re.ASCII)
_MAYBE_SECRET = re.compile(rf'"(?:\$secret":|\$sealed":|(?:{_names_pattern()})":")'.encode())
INLINE_SECRET = re.compile(
    rf"""
    (?P<quoted>["'](?:{_names_pattern()})["']\s*[:=]\s*(?P<quote>["']))(?:\\.|(?!(?P=quote)).)*
    | (?P<named>(?<![A-Za-z0-9])(?:{_names_pattern()})=)[^\s&;,"']+
    | (?P<scheme>(?<![A-Za-z0-9])(?:Bearer|Basic)[ ]+)[A-Za-z0-9+/=_.~-]{{8,}}
    | (?P<url>://[^\s/:@"']*:)[^\s/@"']+(?=@)
    """,
    re.IGNORECASE | re.ASCII | re.VERBOSE | re.DOTALL,
)


def is_secret_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def may_hold_secrets(encoded: bytes) -> bool:
    """A quick look at JSON without spaces between its parts: False only if there is nothing to find in it."""
    # In small letters first: a pattern that minds no case costs three times as much.
    return _MAYBE_SECRET.search(encoded.lower()) is not None


def replace_secrets(value: object, change: Callable[[str], object]) -> object:
    """The same value with each secret changed, where it stands: what marks it stays around it."""
    return _SecretWalker(lambda _, secret: change(secret), unwrap=False).walk(value, ())


def split_secrets(value: object) -> tuple[object, dict[Path, str]]:
    """The value as everybody may see it, and the secrets that were in it."""
    secrets: dict[Path, str] = {}

    def mask(path: Path, secret: str) -> object:
        secrets[path] = secret
        return MASK

    return _SecretWalker(mask, unwrap=True).walk(value, ()), secrets


def redact(value: object) -> object:
    """The value as everybody may see it."""
    return split_secrets(value)[0]


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """Strikes known secrets out of free text, and what says itself that it is one."""
    encoded_secrets = {form for secret in secrets if len(secret) >= SECRET_LENGTH_MIN for form in _encodings(secret)}
    # The longest first: a secret that begins like another must not leave its end behind. One after the other, because
    # a pattern of them all would try each at every letter, and an agent chooses both.
    for encoded in sorted(encoded_secrets, key=len, reverse=True):
        text = text.replace(encoded, MASK)
    return INLINE_SECRET.sub(_mask_match, text)


def _encodings(secret: str) -> set[str]:
    """As it is, and as it stands in a quotation: an error often shows what it was given as JSON, or as Python does."""
    return {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}


def _mask_match(found: re.Match[str]) -> str:
    prefix = found["quoted"] or found["named"] or found["scheme"] or found["url"]
    return f"{prefix}{MASK}"


class _SecretWalker:
    """Through a JSON value, once. What holds no secret is handed on as it is."""

    def __init__(self, change: Callable[[Path, str], object], *, unwrap: bool) -> None:
        self._change = change
        self._unwrap = unwrap

    def walk(self, value: object, path: Path) -> object:
        if len(path) > DEPTH_MAX:
            raise Invalid("invalid_body", f"JSON may be {DEPTH_MAX} levels deep at most.")
        if isinstance(value, dict):
            return self._walk_object(value, path)
        if isinstance(value, list | tuple):
            return [self.walk(item, (*path, index)) for index, item in enumerate(value)]
        return value

    def _walk_object(self, value: dict[str, object], path: Path) -> object:
        if ENCRYPTED_MARKER in value:
            raise _reserved_key_error(path, f"`{ENCRYPTED_MARKER}` is how secrets are stored, and cannot be sent.")
        if SECRET_MARKER in value:
            secret = value[SECRET_MARKER]
            if len(value) > 1 or not isinstance(secret, str):
                raise _reserved_key_error(
                    path, f'A secret is {{"{SECRET_MARKER}": "…"}}: a string, and nothing else beside it.'
                )
            changed = self._change(path, secret)
            return changed if self._unwrap else {SECRET_MARKER: changed}
        return {name: self._walk_member(name, member, path) for name, member in value.items()}

    def _walk_member(self, name: str, member: object, path: Path) -> object:
        member_path = (*path, name)
        if isinstance(member, str):
            return self._change(member_path, member) if is_secret_name(name) else member
        return self.walk(member, member_path)


def _reserved_key_error(path: Path, detail: str) -> Invalid:
    return Invalid("reserved_key", detail, field=format_path(path))


def format_path(path: Path) -> str:
    """As refusals name a field. Keys are the caller's own words, and may be long: cut, they still lead there."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"${text[:200]}"
