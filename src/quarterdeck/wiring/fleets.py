"""The room of fleets: its lanes, its desks, and those who wait for messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from quarterdeck.client import data_dir
from quarterdeck.core.caller import Role
from quarterdeck.core.clock import DAY, SECOND
from quarterdeck.domain.fleets import (
    fleet_routes,
    member_panes,
    member_routes,
    message_routes,
    monitor_routes,
    pane_notifier,
)
from quarterdeck.domain.fleets.fleet_routes import FleetDesk
from quarterdeck.domain.fleets.member_panes import PaneStation
from quarterdeck.domain.fleets.member_routes import MemberDesk
from quarterdeck.domain.fleets.message_routes import MessageDesk
from quarterdeck.domain.fleets.model.commands import FleetCommand, FleetOutcome, Receipt, SpokenCommand, SpokenOutcome
from quarterdeck.domain.fleets.model.rows import FleetSettings, Member, Message
from quarterdeck.domain.fleets.monitor_routes import MonitorDesk
from quarterdeck.domain.fleets.operations import inbox_long_poll, members, message_reads
from quarterdeck.domain.fleets.operations.inbox_long_poll import Awaiting, PollLook
from quarterdeck.domain.fleets.operations.messages import Talking
from quarterdeck.domain.fleets.pane_access import Reach
from quarterdeck.domain.fleets.pane_notifier import Notifier
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Lookout
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.http.event_stream import Live
from quarterdeck.http.timeline_stream import Timelines
from quarterdeck.runtime import Keel, Room
from quarterdeck.settings import Settings, SettingsError, environment
from quarterdeck.tmux.coding_agents import CodingAgent, CodingError, coding_agents_of
from quarterdeck.tmux.host import this_host


def the_fleets(keel: Keel, issuer: LocalIssuer, live: Live) -> Room:
    lanes, told = keel.lanes, keel.settings.section(FleetSettings)

    def delivered(messages: Sequence[Message]) -> None:
        notifier.delivered(messages)

    crews: Lane[FleetCommand, FleetOutcome] = lanes.writing("fleet", members.change)
    talks: Lane[SpokenCommand, SpokenOutcome] = lanes.writing("message", Talking(delivered).run)
    # Receipts go through the lane of what they are about.
    notifier = the_notifier(keel, talks.submit)
    station = the_station(keel, issuer, crews.submit)
    polls = inbox_long_poll.polls()
    keel.metrics.gauge("quarterdeck_polls_waiting", "Polls that wait for a message", "messages", polls.__len__)
    messages = MessageDesk(
        keel.engine,
        talks.submit,
        lanes.reading("member-names", message_reads.names_of).submit,
        Awaiting(keel.engine, polls),
        told.fleet_poll_wait_max_ms,
        notifier.settled,
        Timelines(live).follow,
    )
    look = PollLook(keel.engine, polls)
    return Room(
        [
            *fleet_routes.routes(FleetDesk(keel.engine, crews.submit, station)),
            *member_routes.routes(MemberDesk(keel.engine, crews.submit, station)),
            *message_routes.routes(messages),
            *monitor_routes.routes(MonitorDesk(keel.engine, crews.submit)),
        ],
        runs=[Lookout(keel.wakes, polls, look, inbox_long_poll.LOOK_SECONDS, "message-lookout"), notifier],
        on_drain=[polls.close],
    )


def the_notifier(keel: Keel, receipt: Callable[[Receipt], Awaitable[SpokenOutcome]]) -> Notifier:
    told = keel.settings.section(FleetSettings)
    means = pane_notifier.Means(keel.everywhere, receipt, this_host(), coding_agents(told))
    notifier = Notifier(means, told, keel.settings.server.shutdown_grace_ms / 1000)
    keel.metrics.gauge("quarterdeck_notices_waiting", "Notices that have no receipt yet", "panes", notifier.__len__)
    for outcome in pane_notifier.OUTCOMES:
        keel.metrics.counter(
            "quarterdeck_notices",
            "Notices of messages, by what came of them",
            outcome,
            partial(notifier.counts.__getitem__, outcome),
        )
    return notifier


def the_station(
    keel: Keel, issuer: LocalIssuer, submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]
) -> PaneStation:
    told = keel.settings.section(FleetSettings)
    scopes = (keel.settings.section(AuthSettings).lifecycle_scope,)

    def mint(member: Member) -> str:
        assert member.registry_id is not None  # only the administrator is nobody there
        grant = Grant(
            zone_id=member.zone_id,
            client_id=f"fleet-{member.fleet_id}",
            subject=f"agent:{member.registry_id}",
            scopes=scopes,
            agent_id=member.registry_id,
            role=Role.AGENT,
            agent_since=member.registered_at,
        )
        return issuer.mint(grant, told.fleet_token_days * DAY // SECOND)

    reach = Reach(this_host(), coding_agents(told), told.fleet_notice_seconds, told.fleet_exit_seconds)
    return PaneStation(member_panes.Means(keel.engine, submit, mint, reach, _address(keel.settings)))


def coding_agents(told: FleetSettings) -> Mapping[str, CodingAgent]:
    try:
        return coding_agents_of(told.coding_agents)
    except CodingError as error:
        raise SettingsError(str(error)) from error


def _address(settings: Settings) -> dict[str, str]:
    """The socket, whose name follows from the directory: it is the same when the server is started again."""
    return {"QD_URL": f"unix:{data_dir.socket_path(data_dir.Place(str(settings.data)), environment())}"}
