"""JSON texts with secrets in them, as rooms see them: sealed at rest, opened for a holder, masked for all others.

Sealing looks at the text once and parses nothing where there is nothing to seal. Opening and masking never parse: an
object that begins with `{"$sealed":` is only ever made here (what is sent with that key is refused), and inside of a
JSON string its quotes would be escaped, so a pattern finds exactly what was sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import logging
import re
from collections.abc import Iterable

import msgspec

from quarterdeck.core import redaction
from quarterdeck.core.errors import Invalid
from quarterdeck.core.redaction import SEALED, SECRET, SECRETS_MAX, STRUCK
from quarterdeck.engine.secrets.keyring import About, Ring, Unopened, key_id_of

__all__ = ["About", "Safe", "key_ids_in"]

log = logging.getLogger("quarterdeck.secrets")
_MARK = f'"{SEALED}"'
_VALUE = rf'{{"{re.escape(SEALED)}":"(qs1\.[A-Za-z0-9_.-]+)"}}'
_SEALED = re.compile(_VALUE)
_SHOWN = re.compile(rf'{{"{re.escape(SECRET)}":{_VALUE}}}|{_VALUE}')
_NOTHING = f'"{STRUCK}"'


class Safe:
    """Made once, in the composition root. `pepper` keeps digests of what holds secrets from being guessed."""

    def __init__(self, ring: Ring, pepper: bytes) -> None:
        self.ring = ring
        self._pepper = pepper
        self.unopened = 0
        """Values that did not open, counted each time."""
        self._complained: set[str] = set()

    def seal(self, value: object, about: About) -> str:
        """The JSON text to store. Raises Invalid for `$sealed`, which is ours, for a `$secret` that is none, and for
        more secrets than anybody has."""
        text = msgspec.json.encode(value)
        if not redaction.may_hold_secrets(text):
            return text.decode()
        # Through the text again: what is walked is what would be stored, whatever types the value was made of.
        plain = msgspec.json.decode(text)
        found = itertools.count(1)

        def sealed(secret: str) -> dict[str, str]:
            if next(found) > SECRETS_MAX:
                raise Invalid("too_many_secrets", f"One value may hold {SECRETS_MAX} secrets at most.")
            return {SEALED: self.ring.seal(secret, about)}

        return msgspec.json.encode(redaction.replaced(plain, sealed)).decode()

    def open(self, text: str, about: About) -> str:
        """In the clear, as it was sent. What does not open is masked."""
        return _SEALED.sub(lambda found: self._opened(found[1], about), text) if _MARK in text else text

    def masked(self, text: str) -> str:
        """As everybody may see it."""
        return _SHOWN.sub(_NOTHING, text) if _MARK in text else text

    def resealed(self, text: str, about: About) -> str:
        """With everything under the key that seals now. What does not open stays as it is."""
        return _SEALED.sub(lambda found: self._resealed(found, about), text) if _MARK in text else text

    def strike(self, text: str, stored: Iterable[tuple[str, About]] = ()) -> str:
        """Free text (an error, a stack trace) without the secrets of the stored JSON that it may speak of."""
        known: set[str] = set()
        for said, about in stored:
            if _MARK in said:
                known |= self._secrets_in(said, about)
        return redaction.redact_text(text, known)

    def digest(self, asked: msgspec.Struct) -> str:
        """As `keys.digest`, for what may hold secrets: from a plain digest, a short secret could be guessed."""
        text = msgspec.json.encode(asked, order="deterministic")
        if redaction.may_hold_secrets(text):
            return hmac.digest(self._pepper, text, hashlib.sha256).hex()
        return hashlib.sha256(text).hexdigest()

    def _secrets_in(self, said: str, about: About) -> set[str]:
        known = set()
        for sealed in _SEALED.findall(said):
            try:
                known.add(self.ring.open(sealed, about))
            except Unopened as error:
                self._complain(error, about)
        return known

    def _opened(self, sealed: str, about: About) -> str:
        try:
            return msgspec.json.encode(self.ring.open(sealed, about)).decode()
        except Unopened as error:
            self._complain(error, about)
            return _NOTHING

    def _resealed(self, found: re.Match[str], about: About) -> str:
        if key_id_of(found[1]) == self.ring.sealing_id:
            return found[0]
        try:
            anew = self.ring.seal(self.ring.open(found[1], about), about)
        except Unopened as error:
            self._complain(error, about)
            return found[0]
        return f'{{"{SEALED}":"{anew}"}}'

    def _complain(self, error: Unopened, about: About) -> None:
        self.unopened += 1
        if error.key_id in self._complained:
            return  # counted; a line for each would be one for each claim
        self._complained.add(error.key_id)
        zone, table, row, field = about
        log.error(
            "a secret sealed with the key %r does not open: %s (zone %s, %s of %s %s; more under that key are counted)",
            error.key_id, error, zone, field, table, row,
        )  # fmt: skip


def key_ids_in(text: str) -> list[str]:
    """Of each sealed value in a stored text, the key it was sealed with."""
    return [key_id_of(sealed) for sealed in _SEALED.findall(text)]
