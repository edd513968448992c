"""Which parts of JSON values and free text are secret, and how they are masked.

Only strings are secret, in two cases: the string in an object `{"$secret": "…"}`, and the value of a key whose complete
name is in `SECRET_NAMES`. The comparison ignores case and word separators (`_` and `-`): `api_key`, `API-Key` and
`apiKey` are the same name; `max_tokens` and `tokens` are not in the list. A secret under any other name must be wrapped
in `{"$secret": …}`. A value that is not secret but has one of these names is masked when it is shown; the stored value
is not lost.

An object with `$secret` and other keys, or with a `$secret` that is not a string, is refused: its author meant a
secret, and storing it would leave that secret in plain text. `$sealed` is the stored form of a secret. It is refused in
requests, because a forged one would be mistaken for a stored secret.

Free text (an error, a stack trace) has no keys. Two things are masked in it: the values of known secrets, and text that
has the form of a secret (`INLINE_SECRET`): `password=…`, `"token": "…"`, `Bearer …`, the password in a URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

from quarterdeck.core.errors import Invalid

SECRET_MARKER = "$secret"  # noqa: S105 - a key, not a secret
ENCRYPTED_MARKER = "$sealed"
MASK = "***"
DEPTH_MAX = 80
"""More than the HTTP server accepts (64), because encryption adds levels."""
SECRETS_MAX = 256
"""The maximum in one JSON value: each secret is encrypted separately and searched for in every error of its task."""
SECRET_LENGTH_MIN = 4
"""Shorter values are not masked in free text: `a` occurs in every sentence, and the masks would reveal the secret."""
SECRET_NAMES = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "access_token", "refresh_token", "id_token",
    "auth_token", "bearer_token", "session_token", "api_token", "attempt_token", "api_key", "x_api_key", "api_secret",
    "access_key", "secret_key", "secret_access_key", "aws_secret_access_key", "private_key", "signing_key",
    "encryption_key", "ssh_key", "client_secret", "webhook_secret", "authorization", "proxy_authorization", "cookie",
    "set_cookie", "credential", "credentials", "connection_string", "jwt",
)  # fmt: skip
"""Public: `docs/secrets.md` lists the names, and a test compares the two."""

Path = tuple[str | int, ...]


def _names_pattern() -> str:
    """All names as one pattern. Grouping by first letter makes it fast: it is tried at every key of every value."""
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
    """Scan compact JSON quickly. False only if it holds no secrets."""
    # Lower-casing first is three times as fast as a pattern that ignores case.
    return _MAYBE_SECRET.search(encoded.lower()) is not None


def replace_secrets(value: object, change: Callable[[str], object]) -> object:
    """The value with each secret replaced, inside its `$secret` wrapper if it has one. Raises `Invalid` for a misused
    `$secret`, for `$sealed`, and for more than `DEPTH_MAX` levels."""
    return _SecretWalker(lambda _, secret: change(secret), unwrap=False).walk(value, ())


def split_secrets(value: object) -> tuple[object, dict[Path, str]]:
    """The value with its secrets masked and unwrapped, and the secrets by path. Raises `Invalid` as `replace_secrets`
    does."""
    secrets: dict[Path, str] = {}

    def mask(path: Path, secret: str) -> object:
        secrets[path] = secret
        return MASK

    return _SecretWalker(mask, unwrap=True).walk(value, ()), secrets


def redact(value: object) -> object:
    """The value with its secrets masked."""
    return split_secrets(value)[0]


def redact_text(text: str, secrets: Collection[str] = ()) -> str:
    """Mask known secrets in free text, and text that has the form of a secret."""
    encoded_secrets = {form for secret in secrets if len(secret) >= SECRET_LENGTH_MIN for form in _encodings(secret)}
    # Longest first: a secret that starts with another must be masked completely. One after the other: a single pattern
    # would try each secret at every character, and an agent controls both text and secrets.
    for encoded in sorted(encoded_secrets, key=len, reverse=True):
        text = text.replace(encoded, MASK)
    return INLINE_SECRET.sub(_mask_match, text)


def _encodings(secret: str) -> set[str]:
    """The secret unescaped, and as JSON and Python escape it, because errors often quote their input."""
    return {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}


def _mask_match(match: re.Match[str]) -> str:
    prefix = match["quoted"] or match["named"] or match["scheme"] or match["url"]
    return f"{prefix}{MASK}"


class _SecretWalker:
    """Copies a JSON value and changes each secret. Does not alter the original."""

    def __init__(self, change: Callable[[Path, str], object], *, unwrap: bool) -> None:
        self._change = change
        self._unwrap = unwrap

    def walk(self, value: object, path: Path) -> object:
        if len(path) > DEPTH_MAX:
            raise Invalid("invalid_body", f"JSON may have at most {DEPTH_MAX} levels.")
        if isinstance(value, dict):
            return self._walk_object(value, path)
        if isinstance(value, list | tuple):
            return [self.walk(item, (*path, index)) for index, item in enumerate(value)]
        return value

    def _walk_object(self, value: dict[str, object], path: Path) -> object:
        if ENCRYPTED_MARKER in value:
            raise _reserved_key_error(path, f"`{ENCRYPTED_MARKER}` is reserved for stored secrets and cannot be sent.")
        if SECRET_MARKER in value:
            secret = value[SECRET_MARKER]
            if len(value) > 1 or not isinstance(secret, str):
                raise _reserved_key_error(
                    path, f'A secret must be {{"{SECRET_MARKER}": "…"}}: one string, and no other keys.'
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
    """The path in the form used in errors: `$.a[0]`. Cut after 200 characters, because the keys may be long."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f"${text[:200]}"


def mask_passwords(text: str) -> str:
    """Mask the password of a database URL or connection string, wherever PostgreSQL accepts one."""
    text = re.sub(r"(?i)(password=)[^&\s]*", r"\1***", text)
    scheme, separator, rest = text.partition("://")
    user, at, host = rest.rpartition("@")
    if not separator or not at or ":" not in user:
        return text
    return f"{scheme}://{user.split(':')[0]}:***@{host}"
