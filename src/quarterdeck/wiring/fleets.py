"""Builds the fleets component: lanes, handlers, long polls for messages, and access to tmux panes."""

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
from quarterdeck.domain.fleets.fleet_routes import FleetHandlers
from quarterdeck.domain.fleets.member_panes import MemberPanes
from quarterdeck.domain.fleets.member_routes import MemberHandlers
from quarterdeck.domain.fleets.message_routes import MessageHandlers
from quarterdeck.domain.fleets.model.commands import (
    FleetCommand,
    FleetOutcome,
    MessageCommand,
    MessageOutcome,
    RecordReceipt,
)
from quarterdeck.domain.fleets.model.rows import FleetSettings, Member, Message
from quarterdeck.domain.fleets.monitor_routes import MonitorHandlers
from quarterdeck.domain.fleets.operations import inbox_long_poll, members, message_reads
from quarterdeck.domain.fleets.operations.inbox_long_poll import InboxLongPoll, InboxWakeups
from quarterdeck.domain.fleets.operations.messages import MessageBatchRunner
from quarterdeck.domain.fleets.pane_access import PaneAccess
from quarterdeck.domain.fleets.pane_notifier import PaneNotifier
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.http.event_stream import EventStreams
from quarterdeck.http.timeline_stream import TimelineStreams
from quarterdeck.runtime import Component, Runtime
from quarterdeck.settings import Settings, SettingsError, environment
from quarterdeck.tmux.coding_agents import CodingAgent, CodingAgentError, merge_coding_agents
from quarterdeck.tmux.host import this_host


def build_fleets(runtime: Runtime, issuer: LocalIssuer, event_streams: EventStreams) -> Component:
    lanes, settings = runtime.lanes, runtime.settings.section(FleetSettings)

    def on_delivered(messages: Sequence[Message]) -> None:
        notifier.notify(messages)

    fleet_lane: Lane[FleetCommand, FleetOutcome] = lanes.add_write_lane("fleet", members.change_fleets)
    message_lane: Lane[MessageCommand, MessageOutcome] = lanes.add_write_lane(
        "message", MessageBatchRunner(on_delivered).run
    )
    # Receipts change messages, so they go through the message lane.
    notifier = build_notifier(runtime, message_lane.submit)
    panes = build_member_panes(runtime, issuer, fleet_lane.submit)
    polls = inbox_long_poll.new_inbox_polls()
    runtime.metrics.add_gauge(
        "quarterdeck_polls_waiting", "Long polls waiting for a message", "messages", polls.__len__
    )
    message_handlers = MessageHandlers(
        runtime.engine,
        message_lane.submit,
        lanes.add_read_lane("member-names", message_reads.load_names_batch).submit,
        InboxLongPoll(runtime.engine, polls),
        settings.fleet_poll_wait_max_ms,
        notifier.wait_for_receipts,
        TimelineStreams(event_streams).open,
    )
    inbox_wakeups = InboxWakeups(runtime.engine, polls)
    return Component(
        [
            *fleet_routes.routes(FleetHandlers(runtime.engine, fleet_lane.submit, panes)),
            *member_routes.routes(MemberHandlers(runtime.engine, fleet_lane.submit, panes)),
            *message_routes.routes(message_handlers),
            *monitor_routes.routes(MonitorHandlers(runtime.engine, fleet_lane.submit)),
        ],
        startables=[
            Watcher(runtime.wakeups, polls, inbox_wakeups, inbox_long_poll.CHECK_INTERVAL_SECONDS, "message-lookout"),
            notifier,
        ],
        on_drain=[polls.close],
    )


def build_notifier(
    runtime: Runtime, submit_receipt: Callable[[RecordReceipt], Awaitable[MessageOutcome]]
) -> PaneNotifier:
    settings = runtime.settings.section(FleetSettings)
    deps = pane_notifier.NotifierDeps(
        runtime.cross_zone_engine, submit_receipt, this_host(), load_coding_agents(settings)
    )
    notifier = PaneNotifier(deps, settings, runtime.settings.server.shutdown_grace_ms / 1000)
    runtime.metrics.add_gauge("quarterdeck_notices_waiting", "Notices without a receipt yet", "panes", notifier.__len__)
    for outcome in pane_notifier.OUTCOMES:
        runtime.metrics.add_counter(
            "quarterdeck_notices",
            "Notices of messages, by outcome",
            outcome,
            partial(notifier.counts.__getitem__, outcome),
        )
    return notifier


def build_member_panes(
    runtime: Runtime, issuer: LocalIssuer, submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]
) -> MemberPanes:
    settings = runtime.settings.section(FleetSettings)
    scopes = (runtime.settings.section(AuthSettings).lifecycle_scope,)

    def mint(member: Member) -> str:
        assert member.registry_id is not None  # only the administrator is not a registered agent
        grant = Grant(
            zone_id=member.zone_id,
            client_id=f"fleet-{member.fleet_id}",
            subject=f"agent:{member.registry_id}",
            scopes=scopes,
            agent_id=member.registry_id,
            role=Role.AGENT,
            agent_since=member.registered_at,
        )
        return issuer.mint(grant, settings.fleet_token_days * DAY // SECOND)

    pane_access = PaneAccess(
        this_host(), load_coding_agents(settings), settings.fleet_notice_seconds, settings.fleet_exit_seconds
    )
    return MemberPanes(
        member_panes.MemberPanesDeps(runtime.engine, submit, mint, pane_access, _server_environment(runtime.settings))
    )


def load_coding_agents(settings: FleetSettings) -> Mapping[str, CodingAgent]:
    try:
        return merge_coding_agents(settings.coding_agents)
    except CodingAgentError as error:
        raise SettingsError(str(error)) from error


def _server_environment(settings: Settings) -> dict[str, str]:
    """The variable by which a member finds the server.

    It names the Unix socket, whose path depends only on the data directory and stays valid when the server restarts.
    """
    return {"QD_URL": f"unix:{data_dir.socket_path(data_dir.DataDir(str(settings.data)), environment())}"}
