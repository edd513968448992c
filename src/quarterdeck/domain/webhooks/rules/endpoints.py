"""Which endpoints may be created, and how they change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from quarterdeck.core import ssrf
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Conflict, Invalid, LimitReached, NotFound, Problem
from quarterdeck.core.idempotency import BatchKeys, Key, KeyRecord
from quarterdeck.core.ids import Ref
from quarterdeck.domain.services.rules.endpoint_urls import endpoint_problem
from quarterdeck.domain.webhooks.model import (
    ENDPOINTS_MAX,
    Create,
    Delivery,
    Disable,
    DisableReason,
    Endpoint,
    EndpointCommand,
    EndpointResult,
    Remove,
    Replay,
    RotateSecret,
    SendTest,
    Update,
    WebhookCommand,
)
from quarterdeck.domain.webhooks.rules import payloads, states
from quarterdeck.domain.webhooks.rules.payloads import build_test_payload

_replace = msgspec.structs.replace
_decode_names = msgspec.json.Decoder(list[str]).decode
CREATE_OPERATION = "webhook.create"
"""The name of the operation in the scope of an idempotency key."""
FIRST_SECRET_NUMBER = 1


# -- fields ------------------------------------------------------------------------------------------------------


def normalize_types(types: Iterable[str] | None) -> tuple[str, ...]:
    """The given types without duplicates, or the default types."""
    return tuple(dict.fromkeys(payloads.DEFAULT_TYPES if types is None else types))


def types_problem(types: Iterable[str]) -> Invalid | None:
    """The problem with an unknown type, or None. A mistyped type would never match an event."""
    for name in types:
        if name not in payloads.ALLOWED_TYPES:
            return Invalid(
                "invalid_webhook_type",
                f"Unknown event type {name!r}. Allowed: {', '.join(payloads.ALLOWED_TYPES)}.",
                field="types",
            )
    return None


def url_problem(url: str, *, private_allowed: bool) -> Invalid | None:
    """The problem with a URL, or None. The addresses that its host resolves to are checked at each attempt."""
    if problem := endpoint_problem(url):
        return _invalid(problem.detail.partition(". ")[2].removesuffix("."))
    if private_allowed:
        return None
    if not url.lower().startswith("https://"):
        return _invalid("The URL must start with https://")
    if reason := ssrf.blocked_host_reason(url_host(url)):
        return _invalid(f"Webhooks need a public host, and this host is {reason}")
    return None


def url_host(url: str) -> str:
    """The host of a valid URL. Events contain only the host, because the rest of a URL may contain a secret."""
    host = url.partition("://")[2]
    if host.startswith("["):
        return host[: host.index("]") + 1]
    for delimiter in "/?:":
        host = host.partition(delimiter)[0]
    return host


def decode_types(endpoint: Endpoint) -> list[str]:
    return _decode_names(endpoint.types)


# -- decisions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    max_failing_ms: Millis
    """How long an endpoint may fail before it is disabled."""
    private_allowed: bool = False
    """Whether the server may send to private addresses."""


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event that the transaction will append to the log."""

    command: EndpointCommand
    verb: str
    before: Endpoint | None
    after: Endpoint
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointBatchInput:
    """The input of a batch, loaded under the zones' locks."""

    endpoints: Iterable[Endpoint]
    deliveries: Iterable[Delivery]
    keys: Mapping[Key, KeyRecord]


class EndpointDecider:
    """Decides the commands of a batch in order; each sees the changes made by those before it."""

    def __init__(
        self,
        now: Millis,
        zone_problems: Mapping[str, Problem | None],
        loaded: EndpointBatchInput,
        policy: EndpointPolicy,
    ) -> None:
        self._now = now
        self._zone_problems = zone_problems
        self._rows = {row.ref: row for row in loaded.endpoints}
        self._deliveries = {(row.zone_id, row.endpoint_id, row.id): row for row in loaded.deliveries}
        self.keys = BatchKeys(loaded.keys)
        self._policy = policy
        self.created: list[Ref] = []
        self.changed: set[Ref] = set()
        self.reenabled: set[Ref] = set()
        """Enabled again: they get only events from now on."""
        self.url_changed: set[Ref] = set()
        """Their URL changed, so their failures are cleared."""
        self.test_deliveries: list[Delivery] = []
        self.replayed: dict[tuple[str, str, str], Delivery] = {}
        self.events: list[PendingEvent] = []

    def row(self, ref: Ref) -> Endpoint:
        return self._rows[ref]

    def decide(self, command: WebhookCommand) -> EndpointResult | Problem:
        if problem := self._zone_problems[command.zone_id]:
            return problem
        if isinstance(command, Create):
            return self._create(command)
        row = self._rows.get(command.ref)
        if row is None or row.removed_at is not None:
            return not_found(command.id)
        match command:
            case Update():
                return self._update(command, row)
            case RotateSecret():
                rotated = _replace(row, secret_number=row.secret_number + 1, rotated_at=self._now)
                return EndpointResult(self._record_update(command, "secret_rotated", row, rotated), include_secret=True)
            case Remove():
                return EndpointResult(self._record_update(command, "removed", row, mark_removed(row, self._now)))
            case SendTest():
                return self._send_test(command, row)
            case Replay():
                return self._replay(command, row)
            case Disable():
                return self._disable(command, row)

    def _create(self, command: Create) -> EndpointResult | Problem:
        key = key_scope(command)
        created_id = self.keys.find(key, command.request_digest)
        if isinstance(created_id, Problem):
            return created_id
        if created_id is not None:
            return self._repeat_create(command.zone_id, created_id)
        used = sum(row.zone_id == command.zone_id and row.removed_at is None for row in self._rows.values())
        if problem := self._fields_problem(command) or (_limit_exceeded(used) if used >= ENDPOINTS_MAX else None):
            return problem
        row = Endpoint(
            zone_id=command.zone_id,
            id=command.id,
            url=command.url,
            description=command.description,
            types=_encode_names(command.types),
            secret_number=FIRST_SECRET_NUMBER,
            rotated_at=None,
            enabled=1,
            disabled_reason=None,
            position=0,
            failing_since=None,
            created_by=command.actor,
            created_at=self._now,
            updated_at=self._now,
            removed_at=None,
        )
        self._rows[row.ref] = row
        self.created.append(row.ref)
        self.keys.add(key, command.request_digest, row.id)
        self.events.append(
            PendingEvent(command, "created", None, row, {"host": url_host(row.url), "types": [*command.types]})
        )
        return EndpointResult(row, include_secret=True)

    def _repeat_create(self, zone_id: str, endpoint_id: str) -> EndpointResult | Problem:
        """The endpoint that the key created. It is returned even if the limit has been reached since."""
        row = self._rows.get((zone_id, endpoint_id))
        if row is None or row.removed_at is not None:
            return not_found(endpoint_id)
        # Only the first secret is returned, because its response may have been lost. A rotation returned later secrets.
        return EndpointResult(row, include_secret=row.secret_number == FIRST_SECRET_NUMBER, is_repeat=True)

    def _fields_problem(self, command: Create | Update) -> Problem | None:
        problem = (
            None if command.url is UNSET else url_problem(command.url, private_allowed=self._policy.private_allowed)
        )
        return problem or (None if command.types is UNSET else types_problem(command.types))

    def _update(self, command: Update, row: Endpoint) -> EndpointResult | Problem:
        if problem := self._fields_problem(command):
            return problem
        after = row
        if command.url is not UNSET and command.url != row.url:
            after = _replace(after, url=command.url, failing_since=None)
            self.url_changed.add(row.ref)
        if command.description is not UNSET:
            after = _replace(after, description=command.description)
        if command.types is not UNSET:
            after = _replace(after, types=_encode_names(command.types))
        if command.enabled is not UNSET and bool(row.enabled) != command.enabled:
            reason = None if command.enabled else str(DisableReason.BY_HAND)
            after = _replace(after, enabled=int(command.enabled), disabled_reason=reason, failing_since=None)
        if after == row:
            return EndpointResult(row)
        if after.enabled > row.enabled:
            self.reenabled.add(row.ref)
        data = {"host": url_host(after.url), "types": decode_types(after), "enabled": bool(after.enabled)}
        return EndpointResult(self._record_update(command, "changed", row, after, data))

    def _send_test(self, command: SendTest, row: Endpoint) -> EndpointResult | Problem:
        if not row.enabled:
            return webhook_disabled(row)
        payload = build_test_payload(row.zone_id, row.id, command.delivery_id, self._now)
        delivery = states.new_delivery(row, payload, (command.delivery_id, 0, command.trace), self._now)
        self.test_deliveries.append(delivery)
        self.events.append(PendingEvent(command, "tested", row, row, {"deliveryId": command.delivery_id}))
        return EndpointResult(row, delivery=delivery)

    def _replay(self, command: Replay, row: Endpoint) -> EndpointResult | Problem:
        key = (*row.ref, command.delivery_id)
        delivery = self._deliveries.get(key)
        if delivery is None:
            return delivery_not_found(command.delivery_id)
        if not row.enabled:
            return webhook_disabled(row)
        self._deliveries[key] = self.replayed[key] = after = states.replay(delivery, self._now)
        self.events.append(PendingEvent(command, "replayed", row, row, {"deliveryId": command.delivery_id}))
        return EndpointResult(row, delivery=after)

    def _disable(self, command: Disable, row: Endpoint) -> EndpointResult:
        """Disable the endpoint, unless it has recovered or its URL has changed since the failure."""
        has_recovered = command.reason is DisableReason.FAILING and not states.has_failed_for(
            row, self._now, self._policy.max_failing_ms
        )
        url_changed = command.url is not None and command.url != row.url
        if not row.enabled or has_recovered or url_changed:
            return EndpointResult(row)
        after = _replace(row, enabled=0, disabled_reason=str(command.reason))
        data = {"reason": str(command.reason), "host": url_host(row.url)}
        return EndpointResult(self._record_update(command, "disabled", row, after, data))

    def _record_update(
        self,
        command: EndpointCommand,
        verb: str,
        before: Endpoint,
        after: Endpoint,
        data: Mapping[str, object] | None = None,
    ) -> Endpoint:
        after = _replace(after, updated_at=self._now)
        self._rows[after.ref] = after
        self.changed.add(after.ref)
        self.events.append(PendingEvent(command, verb, before, after, data or {}))
        return after


def key_scope(command: Create) -> Key | None:
    if command.idempotency_key is None or command.caller is None:
        return None
    return Key(command.zone_id, command.caller.client_id, CREATE_OPERATION, command.idempotency_key)


def mark_removed(row: Endpoint, now: Millis) -> Endpoint:
    return _replace(row, enabled=0, removed_at=now, updated_at=now)


# -- errors ------------------------------------------------------------------------------------------------------


def not_found(endpoint_id: str) -> NotFound:
    return NotFound("webhook_not_found", f"Webhook {endpoint_id!r} does not exist in this zone.")


def delivery_not_found(delivery_id: str) -> NotFound:
    return NotFound("delivery_not_found", f"The webhook has no delivery {delivery_id!r}.")


def webhook_disabled(row: Endpoint) -> Conflict:
    return Conflict(
        "webhook_disabled",
        f"The webhook is disabled ({row.disabled_reason}). Enable it first.",
        reason=row.disabled_reason,
    )


def _invalid(reason: str) -> Invalid:
    return Invalid("invalid_webhook_url", f"Invalid webhook URL. {reason}.", field="url")


def _limit_exceeded(used: int) -> LimitReached:
    return LimitReached(
        "webhook_limit_exceeded",
        f"A zone can have at most {ENDPOINTS_MAX} webhooks; this zone has {used}. Remove one first.",
        bound="max_webhooks",
        limit=ENDPOINTS_MAX,
        used=used,
        frees="a webhook is removed",
    )


def _encode_names(names: Iterable[str]) -> str:
    return msgspec.json.encode([*names]).decode()
