"""The room of fleets: its lanes, its desks, and those who wait for messages."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.domain.fleets import fleet_routes, member_routes, message_routes, monitor_routes
from quarterdeck.domain.fleets.fleet_routes import FleetDesk
from quarterdeck.domain.fleets.member_routes import MemberDesk
from quarterdeck.domain.fleets.message_routes import MessageDesk
from quarterdeck.domain.fleets.model.commands import FleetCommand, FleetOutcome, SpokenCommand, SpokenOutcome
from quarterdeck.domain.fleets.model.rows import FleetSettings, Message
from quarterdeck.domain.fleets.monitor_routes import MonitorDesk
from quarterdeck.domain.fleets.operations import fleet_reads, inbox_long_poll, members
from quarterdeck.domain.fleets.operations.inbox_long_poll import Awaiting, PollLook
from quarterdeck.domain.fleets.operations.messages import Talking
from quarterdeck.engine.lanes import Lane
from quarterdeck.engine.long_poll import Lookout
from quarterdeck.http.auth import LocalIssuer
from quarterdeck.http.event_stream import Live
from quarterdeck.http.timeline_stream import Timelines
from quarterdeck.runtime import Keel, Room
from quarterdeck.wiring.panes import the_notifier, the_station


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
        lanes.reading("member-names", fleet_reads.names_of).submit,
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
