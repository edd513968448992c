"""The interface through which the fleet routes access panes.

Only a server that runs on the host of a pane, as the user who owns the pane, can create, read and close it. A server
without access to panes has no `PanePort`, and its routes refuse such requests with `no_panes_here`.
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
    """Methods that access a pane require the scope `fleet:exec` and the Unix socket."""

    def require_coding_agent(self, name: str) -> None:
        """Refuse a coding agent that is not configured."""

    async def locate_pane(self, call: Call, pane: Pane, coding_agent: str) -> PaneLocation:
        """Locate the caller's own pane through its tmux server. Used for the director of a new fleet."""

    async def create(self, call: Call, body: MemberBody) -> RegisterMemberResult:
        """Register a member, create its pane in the director's window and start its coding agent there."""

    async def delete(self, call: Call, fleet_id: int, agent_id: int, force: bool) -> FleetMemberDeleted:
        """Make the agent exit, or with `force` kill its pane. Deregister the member after its pane has closed."""

    async def capture(self, call: Call, fleet_id: int, agent_id: int) -> PaneCaptureView:
        """The last lines of the member's pane, as many as the query requests."""

    async def type_text(self, call: Call, fleet_id: int, agent_id: int) -> PaneInputView:
        """Type the text of the body into the member's pane."""

    async def execute(self, call: Call, fleet_id: int, agent_id: int) -> PaneInputView:
        """Make the member's agent run the text of the body as a shell command."""

    async def ping(self, call: Call, fleet_id: int, agent_id: int) -> PaneInputView:
        """Type the line that makes an agent check its messages."""

    async def close_panes(self, call: Call, placements: Sequence[Placement]) -> dict[int, PaneOutcome | NoticeFailure]:
        """Close panes of a fleet that is being deleted. Returns the outcomes by agent id. Raises if one stays open."""
