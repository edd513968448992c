"""Builds response bodies from rows. Messages still show the names of deregistered members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis, iso, iso_or_none
from quarterdeck.core.views import view_of
from quarterdeck.domain.fleets.model.rows import (
    Fleet,
    Member,
    Message,
    MessageState,
    MessageType,
    MonitorConfig,
    MonitorRuntime,
    PingPolicy,
    Placement,
)
from quarterdeck.domain.fleets.model.views import (
    DirectorView,
    FleetMemberView,
    FleetView,
    MessageView,
    MonitoredMemberView,
    MonitorView,
    PlacementView,
    RecipientView,
    TimelineChangeView,
    TimelineEntryView,
)
from quarterdeck.domain.fleets.rules.agent_cards import ADMINISTRATOR_KIND, member_kind
from quarterdeck.domain.fleets.rules.monitor import is_ping_due, is_recent

DEFAULT_TICK_SECONDS = 5
"""For a fleet that has never been monitored."""
MemberNames = Mapping[int, str]
"""The names of members of one zone, by agent id."""
_decode_card = msgspec.json.Decoder(dict[str, object]).decode


@dataclass(frozen=True, slots=True)
class FleetDetails:
    fleet: Fleet
    root_members: list[Member]
    """The director and the administrator."""
    placement: Placement | None
    """The director's placement."""
    member_count: int
    """Active members, including the administrator."""

    @property
    def director(self) -> Member | None:
        return next((member for member in self.root_members if member.agent_id == self.fleet.director_agent_id), None)

    @property
    def administrator(self) -> Member | None:
        return next(
            (member for member in self.root_members if member_kind(member.agent_card_json) == ADMINISTRATOR_KIND), None
        )


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """A message to one member, or the summary of a broadcast with its deliveries."""

    head: Message
    """The message, or the summary of the broadcast."""
    deliveries: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        return [self.head, *self.deliveries]

    @property
    def text(self) -> str:
        """The text as sent. For a broadcast, only the deliveries have it: the summary's text states their number."""
        return self.deliveries[0].text if self.deliveries else self.head.text


@dataclass(frozen=True, slots=True)
class MonitoredMember:
    member: Member
    config: MonitorConfig
    placement: Placement | None
    unread_count: int


placement_view = view_of(Placement, PlacementView)


def _optional_placement_view(placement: Placement | None) -> PlacementView | None:
    return None if placement is None else placement_view(placement)


def fleet_view(details: FleetDetails) -> FleetView:
    fleet, director, administrator = details.fleet, details.director, details.administrator
    return FleetView(
        fleet_id=fleet.fleet_id,
        label=fleet.label,
        created_at=iso(fleet.created_at),
        deleted_at=iso_or_none(fleet.deleted_at),
        administrator_agent_id=None if administrator is None else administrator.agent_id,
        director=None if director is None else _director_view(director, details.placement),
        members=details.member_count,
    )


def _director_view(director: Member, placement: Placement | None) -> DirectorView:
    return DirectorView(
        agent_id=director.agent_id,
        name=director.name,
        description=director.description,
        registered_at=iso(director.registered_at),
        placement=_optional_placement_view(placement),
    )


def member_view(member: Member, placement: Placement | None, unread_count: int | None = None) -> FleetMemberView:
    return FleetMemberView(
        agent_id=member.agent_id,
        fleet_id=member.fleet_id,
        name=member.name,
        description=member.description,
        status=member.status,
        kind=member_kind(member.agent_card_json),
        registered_at=iso(member.registered_at),
        deregistered_at=iso_or_none(member.deregistered_at),
        registry_id=member.registry_id,
        agent_card=_decode_card(member.agent_card_json),
        placement=_optional_placement_view(placement),
        unread=unread_count,
    )


# -- messages ----------------------------------------------------------------------------------------------------


def message_view(message: Message, names: MemberNames) -> MessageView:
    """A summary has no recipient, so its `to_agent_name` is empty. Its deliveries name the recipients."""
    return MessageView(
        task_id=message.task_id,
        id=message.task_id,
        context_id=message.context_id,
        from_agent_id=message.from_agent_id,
        from_agent_name=names.get(message.from_agent_id, ""),
        to_agent_id=message.to_agent_id,
        to_agent_name=names.get(message.to_agent_id, ""),
        type=message.type,
        status_state=message.status_state,
        status_timestamp=iso(message.status_timestamp),
        created_at=iso(message.created_at),
        origin_task_id=message.origin_task_id,
        text=message.text,
        notified_at=iso_or_none(message.notified_at),
        notice=message.notice,
    )


def entry_view(entry: TimelineEntry, names: MemberNames) -> TimelineEntryView:
    head = entry.head
    is_broadcast = head.type is MessageType.SUMMARY
    deliveries = entry.deliveries if is_broadcast else [head]
    return TimelineEntryView(
        id=head.task_id,
        kind="broadcast" if is_broadcast else "unicast",
        from_agent_id=head.from_agent_id,
        from_agent_name=names.get(head.from_agent_id, ""),
        to_agent_id=None if is_broadcast else head.to_agent_id,
        to_agent_name=None if is_broadcast else names.get(head.to_agent_id, ""),
        text=entry.text,
        created_at=iso(head.created_at),
        status_state=head.status_state,
        recipients=[_recipient_view(delivery, names) for delivery in deliveries],
    )


def timeline_change_view(entry_id: int, deliveries: Sequence[Message], names: MemberNames) -> TimelineChangeView:
    return TimelineChangeView(entry_id, [_recipient_view(delivery, names) for delivery in deliveries])


def _recipient_view(delivery: Message, names: MemberNames) -> RecipientView:
    """A delivery changes its state only once, so the status timestamp is the time of the acknowledgement."""
    is_acknowledged = delivery.status_state is MessageState.COMPLETED
    return RecipientView(
        task_id=delivery.task_id,
        agent_id=delivery.to_agent_id,
        agent_name=names.get(delivery.to_agent_id, ""),
        status_state=delivery.status_state,
        acknowledged_at=iso(delivery.status_timestamp) if is_acknowledged else None,
        notified_at=iso_or_none(delivery.notified_at),
        notice=delivery.notice,
    )


# -- the monitor -------------------------------------------------------------------------------------------------


def monitored_member_view(monitored: MonitoredMember, now: Millis) -> MonitoredMemberView:
    config = monitored.config
    return MonitoredMemberView(
        agent_id=monitored.member.agent_id,
        name=monitored.member.name,
        interval_seconds=config.interval_seconds,
        enabled=bool(config.enabled),
        last_ping_at=iso_or_none(config.last_ping_at),
        unread=monitored.unread_count,
        is_due=is_ping_due(config, now),
        placement=_optional_placement_view(monitored.placement),
    )


def monitor_view(
    fleet_id: int, runtime: MonitorRuntime | None, monitored_members: list[MonitoredMember], now: Millis
) -> MonitorView:
    return MonitorView(
        fleet_id=fleet_id,
        pid=None if runtime is None else runtime.pid,
        host_id=None if runtime is None else runtime.host_id,
        user_id=None if runtime is None else runtime.user_id,
        started_at=None if runtime is None else iso_or_none(runtime.started_at),
        last_tick_at=None if runtime is None else iso_or_none(runtime.last_tick_at),
        tick_seconds=DEFAULT_TICK_SECONDS if runtime is None else runtime.tick_seconds,
        policy=PingPolicy.QUIET if runtime is None else runtime.policy,
        is_recent=runtime is not None and is_recent(runtime, now),
        members=[monitored_member_view(member, now) for member in monitored_members],
    )
