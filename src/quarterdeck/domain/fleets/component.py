"""Builds the fleets component: lanes, handlers, long polls for messages, and access to tmux panes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import cast

from quarterdeck.core import metric_table
from quarterdeck.core.clock import DAY, SECOND
from quarterdeck.core.routing import Call
from quarterdeck.domain.agents.model import AgentTokenClaims, MintAgentToken
from quarterdeck.domain.fleets.background import pane_notifier
from quarterdeck.domain.fleets.background.pane_notifier import PaneNotifier
from quarterdeck.domain.fleets.model.rows import FleetSettings, Member, Message
from quarterdeck.domain.fleets.operations import inbox_long_poll, members, message_reads
from quarterdeck.domain.fleets.operations.inbox_long_poll import InboxLongPoll, InboxWakeups
from quarterdeck.domain.fleets.operations.member_panes import MemberPanes, MemberPanesDeps
from quarterdeck.domain.fleets.operations.members import SubmitFleetCommand
from quarterdeck.domain.fleets.operations.messages import MessageBatchRunner, SubmitMessageCommand
from quarterdeck.domain.fleets.operations.pane_access import PaneAccess
from quarterdeck.domain.fleets.routes import fleet_routes, member_routes, message_routes, monitor_routes
from quarterdeck.domain.fleets.routes.fleet_routes import FleetHandlers
from quarterdeck.domain.fleets.routes.member_routes import MemberHandlers
from quarterdeck.domain.fleets.routes.message_routes import MessageHandlers
from quarterdeck.domain.fleets.routes.monitor_routes import MonitorHandlers
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.runtime import Component, Runtime
from quarterdeck.engine.settings import ServerSettings, SettingsError
from quarterdeck.tmux.coding_agents import CodingAgent, CodingAgentError, merge_coding_agents
from quarterdeck.tmux.host import this_host


class Fleets:
    def __init__(
        self,
        runtime: Runtime,
        mint_token: MintAgentToken,
        open_timeline: Callable[[Call[None, None]], Awaitable[object]],
        member_environment: Mapping[str, str],
    ) -> None:
        """`open_timeline` opens a stream of a fleet's timeline; streams belong to the HTTP layer. `member_environment`
        is added to the environment of members' processes."""
        settings = runtime.settings.section(FleetSettings)
        coding_agents = load_coding_agents(settings)
        fleet_lane = runtime.lanes.add_write_lane("fleet", members.change_fleets)
        message_lane = runtime.lanes.add_write_lane("message", MessageBatchRunner(self._on_delivered).run)
        self.submit_fleet = cast(SubmitFleetCommand, fleet_lane.submit)
        self.submit_message = cast(SubmitMessageCommand, message_lane.submit)
        self.names_lane = runtime.lanes.add_read_lane("member-names", message_reads.load_names_batch)
        self._notifier = self._build_notifier(runtime, settings, coding_agents)

        def mint(member: Member) -> str:
            return mint_token(_token_claims(member, settings.fleet_token_days * DAY // SECOND))

        pane_access = PaneAccess(this_host(), coding_agents, settings.fleet_notice_seconds, settings.fleet_exit_seconds)
        panes = MemberPanes(MemberPanesDeps(runtime.engine, self.submit_fleet, mint, pane_access, member_environment))
        self.polls = inbox_long_poll.new_inbox_polls()
        runtime.metrics.add(metric_table.POLLS_WAITING, "messages", self.polls.__len__)
        message_handlers = MessageHandlers(
            runtime.engine,
            self.submit_message,
            self.names_lane.submit,
            InboxLongPoll(runtime.engine, self.polls),
            settings.fleet_poll_wait_max_ms,
            self._notifier.wait_for_receipts,
            open_timeline,
        )
        watcher = Watcher(
            runtime.wakeups,
            self.polls,
            InboxWakeups(runtime.engine, self.polls),
            inbox_long_poll.CHECK_INTERVAL_SECONDS,
            "message-lookout",
        )
        self.component = Component(
            [
                *fleet_routes.routes(FleetHandlers(runtime.engine, self.submit_fleet, panes)),
                *member_routes.routes(MemberHandlers(runtime.engine, self.submit_fleet, panes)),
                *message_routes.routes(message_handlers),
                *monitor_routes.routes(MonitorHandlers(runtime.engine, self.submit_fleet)),
            ],
            startables=[watcher, self._notifier],
            on_drain=[self.polls.close],
        )

    def _on_delivered(self, messages: Sequence[Message]) -> None:
        self._notifier.notify(messages)

    def _build_notifier(
        self, runtime: Runtime, settings: FleetSettings, coding_agents: Mapping[str, CodingAgent]
    ) -> PaneNotifier:
        # Receipts change messages, so they go through the message lane.
        deps = pane_notifier.NotifierDeps(runtime.cross_zone_engine, self.submit_message, this_host(), coding_agents)
        grace_seconds = runtime.settings.section(ServerSettings).shutdown_grace_ms / 1000
        notifier = PaneNotifier(deps, settings, grace_seconds)
        runtime.metrics.add(metric_table.NOTICES_WAITING, "panes", notifier.__len__)
        for outcome in pane_notifier.OUTCOMES:
            runtime.metrics.add(metric_table.NOTICES, outcome, partial(notifier.counts.__getitem__, outcome))
        return notifier


def load_coding_agents(settings: FleetSettings) -> Mapping[str, CodingAgent]:
    try:
        return merge_coding_agents(settings.coding_agents)
    except CodingAgentError as error:
        raise SettingsError(str(error)) from error


def _token_claims(member: Member, ttl_seconds: int) -> AgentTokenClaims:
    assert member.registry_id is not None  # only the administrator is not a registered agent
    return AgentTokenClaims(
        zone_id=member.zone_id,
        agent_id=member.registry_id,
        client_id=f"fleet-{member.fleet_id}",
        ttl_seconds=ttl_seconds,
        registered_at=member.registered_at,
    )
