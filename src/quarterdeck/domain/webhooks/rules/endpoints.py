"""Which endpoints there may be, and how they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from quarterdeck.core import ssrf
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Conflict, Invalid, LimitReached, NotFound, Problem
from quarterdeck.core.idempotency import Binding, Key, bound, conflict
from quarterdeck.domain.services.rules.endpoint_urls import endpoint_problem
from quarterdeck.domain.webhooks.model import (
    ENDPOINTS_MAX,
    Ask,
    Change,
    Changed,
    Command,
    Create,
    Delivery,
    Disable,
    Endpoint,
    Ref,
    Remove,
    Replay,
    Rotate,
    Trial,
    Why,
)
from quarterdeck.domain.webhooks.rules import event_types, states
from quarterdeck.domain.webhooks.rules.payloads import trial

_replace = msgspec.structs.replace
_names = msgspec.json.Decoder(list[str]).decode
CREATING = "webhook.create"
"""What keys are kept under."""
FIRST_SECRET = 1


# -- what may be asked for ---------------------------------------------------------------------------------------


def asked_types(named: Iterable[str] | None) -> tuple[str, ...]:
    """Each once, in the order given; the usual ones where none are."""
    return tuple(dict.fromkeys(event_types.USUAL if named is None else named))


def types_problem(named: Iterable[str]) -> Invalid | None:
    """Why an endpoint cannot hear of these: one that waits for a slip of the pen would wait for ever."""
    for name in named:
        if name not in event_types.KNOWN:
            return Invalid(
                "invalid_webhook_type",
                f"There is no type {name!r}. There are: {', '.join(event_types.KNOWN)}.",
                field="types",
            )
    return None


def url_problem(url: str, *, private_allowed: bool) -> Invalid | None:
    """Why a URL is refused, as far as its spelling tells. What its name resolves to is judged at every attempt."""
    if problem := endpoint_problem(url):
        return _invalid(problem.detail.partition(". ")[2].removesuffix("."))
    if private_allowed:
        return None
    if not url.lower().startswith("https://"):
        return _invalid("It is not https://, and what is told would be read by whoever stands between")
    if why := ssrf.refused(host_of(url)):
        return _invalid(f"Webhooks are sent to public hosts only, and its host is {why}")
    return None


def host_of(url: str) -> str:
    """Of a URL that `endpoint_problem` has nothing against. All that is told of it: the rest may be a secret."""
    rest = url.partition("://")[2]
    if rest.startswith("["):
        return rest[: rest.index("]") + 1]
    for end in "/?:":
        rest = rest.partition(end)[0]
    return rest


def types_of(endpoint: Endpoint) -> list[str]:
    return _names(endpoint.types)


# -- how endpoints change ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """What this server holds endpoints to."""

    failing_ms: Millis
    """For how long one may fail."""
    private_allowed: bool = False
    """Whether the server lets itself be sent into private networks."""


@dataclass(frozen=True, slots=True)
class Told:
    """What happened to an endpoint, for the log."""

    ask: Ask
    verb: str
    before: Endpoint | None
    after: Endpoint
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a batch found."""

    endpoints: Iterable[Endpoint]
    deliveries: Iterable[Delivery]
    keys: Mapping[Key, Binding]


class Registry:
    """The endpoints of the zones of a batch, and each verb in turn."""

    def __init__(self, now: Millis, zones: Mapping[str, Problem | None], stored: Stored, terms: Terms) -> None:
        self._now = now
        self._zones = zones
        self._rows = {row.ref: row for row in stored.endpoints}
        self._deliveries = {(row.zone_id, row.endpoint_id, row.id): row for row in stored.deliveries}
        self._keys = {**stored.keys}
        self._terms = terms
        self.bindings: list[Binding] = []
        self.created: list[Ref] = []
        self.changed: set[Ref] = set()
        self.begun: set[Ref] = set()
        """Those that hear from now on, of what happens from now on."""
        self.moved: set[Ref] = set()
        """Those at another address, which has not failed yet."""
        self.tried: list[Delivery] = []
        self.replayed: dict[tuple[str, str, str], Delivery] = {}
        self.told: list[Told] = []

    def row(self, ref: Ref) -> Endpoint:
        return self._rows[ref]

    def decide(self, ask: Command) -> Changed | Problem:
        if problem := self._zones[ask.zone_id]:
            return problem
        if isinstance(ask, Create):
            return self._create(ask)
        row = self._rows.get(ask.ref)
        if row is None or row.removed_at is not None:
            return not_found(ask.id)
        match ask:
            case Change():
                return self._change(ask, row)
            case Rotate():
                rotated = _replace(row, secret_number=row.secret_number + 1, rotated_at=self._now)
                return Changed(self._put(ask, "secret_rotated", row, rotated), shows_secret=True)
            case Remove():
                return Changed(self._put(ask, "removed", row, removed(row, self._now)))
            case Trial():
                return self._test(ask, row)
            case Replay():
                return self._replay(ask, row)
            case Disable():
                return self._disable(ask, row)

    def _create(self, ask: Create) -> Changed | Problem:
        key = key_of(ask)
        if key is not None and (known := self._keys.get(key)):
            return self._known(ask, key, known)
        used = sum(row.zone_id == ask.zone_id and row.removed_at is None for row in self._rows.values())
        if problem := self._unfit(ask) or (_exceeded(used) if used >= ENDPOINTS_MAX else None):
            return problem
        row = Endpoint(
            zone_id=ask.zone_id,
            id=ask.id,
            url=ask.url,
            description=ask.description,
            types=_text(ask.types),
            secret_number=FIRST_SECRET,
            rotated_at=None,
            enabled=1,
            disabled_reason=None,
            position=0,
            failing_since=None,
            created_by=ask.actor,
            created_at=self._now,
            updated_at=self._now,
            removed_at=None,
        )
        self._rows[row.ref] = row
        self.created.append(row.ref)
        if key is not None:
            self._keys[key] = bound(key, ask.digest, row.id)
            self.bindings.append(self._keys[key])
        self.told.append(Told(ask, "created", None, row, {"host": host_of(row.url), "types": [*ask.types]}))
        return Changed(row, shows_secret=True)

    def _known(self, ask: Create, key: Key, known: Binding) -> Changed | Problem:
        """What was acknowledged once is acknowledged again, whatever bound is reached by now."""
        if known.digest != ask.digest:
            return conflict(key)
        row = self._rows.get((ask.zone_id, known.subject_id))
        if row is None or row.removed_at is not None:
            return not_found(known.subject_id)
        # The secret it was made with, whose answer may have been lost; a later one was shown to somebody else.
        return Changed(row, shows_secret=row.secret_number == FIRST_SECRET, is_known=True)

    def _unfit(self, ask: Create | Change) -> Problem | None:
        url = None if ask.url is UNSET else url_problem(ask.url, private_allowed=self._terms.private_allowed)
        return url or (None if ask.types is UNSET else types_problem(ask.types))

    def _change(self, ask: Change, row: Endpoint) -> Changed | Problem:
        if problem := self._unfit(ask):
            return problem
        after = row
        if ask.url is not UNSET and ask.url != row.url:
            after = _replace(after, url=ask.url, failing_since=None)
            self.moved.add(row.ref)
        if ask.description is not UNSET:
            after = _replace(after, description=ask.description)
        if ask.types is not UNSET:
            after = _replace(after, types=_text(ask.types))
        if ask.enabled is not UNSET and bool(row.enabled) != ask.enabled:
            why = None if ask.enabled else str(Why.BY_HAND)
            after = _replace(after, enabled=int(ask.enabled), disabled_reason=why, failing_since=None)
        if after == row:
            return Changed(row)
        if after.enabled > row.enabled:
            self.begun.add(row.ref)
        data = {"host": host_of(after.url), "types": types_of(after), "enabled": bool(after.enabled)}
        return Changed(self._put(ask, "changed", row, after, data))

    def _test(self, ask: Trial, row: Endpoint) -> Changed | Problem:
        if not row.enabled:
            return disabled(row)
        message = trial(row.zone_id, row.id, ask.delivery_id, self._now)
        delivery = states.made(row, message, (ask.delivery_id, 0, ask.trace), self._now)
        self.tried.append(delivery)
        self.told.append(Told(ask, "tested", row, row, {"deliveryId": ask.delivery_id}))
        return Changed(row, delivery=delivery)

    def _replay(self, ask: Replay, row: Endpoint) -> Changed | Problem:
        key = (*row.ref, ask.delivery_id)
        delivery = self._deliveries.get(key)
        if delivery is None:
            return no_delivery(ask.delivery_id)
        if not row.enabled:
            return disabled(row)
        self._deliveries[key] = self.replayed[key] = after = states.replayed(delivery, self._now)
        self.told.append(Told(ask, "replayed", row, row, {"deliveryId": ask.delivery_id}))
        return Changed(row, delivery=after)

    def _disable(self, ask: Disable, row: Endpoint) -> Changed:
        """What was met when it was asked for may be otherwise by now."""
        stale = ask.why is Why.FAILING and not states.has_failed_for(row, self._now, self._terms.failing_ms)
        moved = ask.url is not None and ask.url != row.url
        if not row.enabled or stale or moved:
            return Changed(row)
        after = _replace(row, enabled=0, disabled_reason=str(ask.why))
        data = {"reason": str(ask.why), "host": host_of(row.url)}
        return Changed(self._put(ask, "disabled", row, after, data))

    def _put(
        self, ask: Ask, verb: str, before: Endpoint, after: Endpoint, data: Mapping[str, object] | None = None
    ) -> Endpoint:
        after = _replace(after, updated_at=self._now)
        self._rows[after.ref] = after
        self.changed.add(after.ref)
        self.told.append(Told(ask, verb, before, after, data or {}))
        return after


def key_of(ask: Create) -> Key | None:
    if ask.key is None or ask.caller is None:
        return None
    return Key(ask.zone_id, ask.caller.client_id, CREATING, ask.key)


def removed(row: Endpoint, now: Millis) -> Endpoint:
    return _replace(row, enabled=0, removed_at=now, updated_at=now)


# -- refusals ----------------------------------------------------------------------------------------------------


def not_found(endpoint_id: str) -> NotFound:
    return NotFound("webhook_not_found", f"There is no webhook {endpoint_id!r} here.")


def no_delivery(delivery_id: str) -> NotFound:
    return NotFound("delivery_not_found", f"The webhook has no delivery {delivery_id!r}.")


def disabled(row: Endpoint) -> Conflict:
    return Conflict(
        "webhook_disabled",
        f"The webhook is disabled ({row.disabled_reason}): nothing is sent to it. Enable it first.",
        reason=row.disabled_reason,
    )


def _invalid(why: str) -> Invalid:
    return Invalid("invalid_webhook_url", f"This cannot be the URL of a webhook. {why}.", field="url")


def _exceeded(used: int) -> LimitReached:
    return LimitReached(
        "webhook_limit_exceeded",
        f"There are at most {ENDPOINTS_MAX} webhooks here, and {used} are there.",
        bound="max_webhooks",
        limit=ENDPOINTS_MAX,
        used=used,
        frees="a webhook is removed",
    )


def _text(names: Iterable[str]) -> str:
    return msgspec.json.encode([*names]).decode()
