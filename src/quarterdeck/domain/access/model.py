"""What the checks of callers need of a command, and the rows that they read."""

from __future__ import annotations

from typing import Protocol

import msgspec

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis


class AccessCommand(Protocol):
    """A command with its zone and the bearer of its caller's credential, if the credential has one."""

    @property
    def zone_id(self) -> str: ...
    @property
    def bearer(self) -> Bearer | None: ...


class CallerCommand(AccessCommand, Protocol):
    """A command that needs a permission. A command without a caller comes from the server itself."""

    @property
    def caller(self) -> Caller | None: ...


class CallerSession(msgspec.Struct, frozen=True, array_like=True):
    """A session that a caller acts for."""

    zone_id: str
    id: str
    status: str
    expires_at: Millis
    terminated_at: Millis | None


class CallerAgent(msgspec.Struct, frozen=True, array_like=True):
    """An agent that a caller acts for."""

    zone_id: str
    id: str
    status: str
    registered_at: Millis
