"""What the room of fleets has of panes: who types notices into them, and who makes and closes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from quarterdeck.client import data_dir
from quarterdeck.core.clock import DAY, SECOND
from quarterdeck.core.routing import Role
from quarterdeck.domain.fleets import member_panes, pane_notifier
from quarterdeck.domain.fleets.member_panes import PaneStation
from quarterdeck.domain.fleets.model.commands import FleetCommand, FleetOutcome, Receipt, SpokenOutcome
from quarterdeck.domain.fleets.model.rows import FleetSettings, Member
from quarterdeck.domain.fleets.pane_access import Reach
from quarterdeck.domain.fleets.pane_notifier import Notifier
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.runtime import Keel
from quarterdeck.settings import Settings, SettingsError, environment
from quarterdeck.tmux.coding_agents import CodingAgent, CodingError, coding_agents_of
from quarterdeck.tmux.host import this_host


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
