"""What the routes of fleets need of whoever has the panes.

Panes are on one host, and only the server that runs there, as their user, can make, read and close them. A server
without panes has no station, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from quarterdeck.core.routing import Call
from quarterdeck.domain.fleets.model.bodies import MemberBody, Pane
from quarterdeck.domain.fleets.model.commands import PaneLocation, RegisterMemberResult
from quarterdeck.domain.fleets.model.rows import NoticeFailure, PaneOutcome, Placement
from quarterdeck.domain.fleets.model.views import FleetMemberDeleted, PaneCaptureView, PaneInputView


class PanePort(Protocol):
    """Whoever reaches into a pane comes over the unix socket with the scope `fleet:exec`: all of these but the
    first refuse others."""

    def require_coding_agent(self, name: str) -> None:
        """Refuses one that the configuration does not name."""

    async def locate_pane(self, call: Call, pane: Pane, coding_agent: str) -> PaneLocation:
        """Where the caller is, as its own tmux server tells: for the director of a fleet that is to be made."""

    async def create(self, call: Call, body: MemberBody) -> RegisterMemberResult:
        """A member with a pane beside the director's: registered, its pane made, its coding agent begun in it."""

    async def delete(self, call: Call, fleet_id: int, agent_id: int, force: bool) -> FleetMemberDeleted:
        """Has its agent exit, and deregisters it once the pane has gone."""

    async def capture(self, call: Call, fleet_id: int, agent_id: int) -> PaneCaptureView:
        """What its pane shows; the query says how much of it."""

    async def type_text(self, call: Call, fleet_id: int, agent_id: int) -> PaneInputView:
        """Types the text of the body into its pane."""

    async def execute(self, call: Call, fleet_id: int, agent_id: int) -> PaneInputView:
        """Has its agent execute the text of the body as a command."""

    async def ping(self, call: Call, fleet_id: int, agent_id: int) -> PaneInputView:
        """Types the line that has an agent look for its messages."""

    async def close_panes(self, call: Call, placements: Sequence[Placement]) -> dict[int, PaneOutcome | NoticeFailure]:
        """Of a fleet that is to be deleted: what became of each, by member. Raises if one could not be closed."""
