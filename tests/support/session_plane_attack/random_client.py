"""The base of all clients: one random action after another until the run ends."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping

from tests.support.session_plane_attack.recording_client import ApiCall, RecordingClient

Action = Callable[[], Awaitable[object]]


class RandomClient:
    def __init__(self, caller: RecordingClient) -> None:
        self.caller = caller
        self.rng = caller.rng
        self.known_ids = caller.known_ids
        self._numbers = itertools.count(1)

    def action_weights(self) -> Mapping[Action, int]:
        """The possible actions and their weights. An action that finds nothing to do returns a false value."""
        raise NotImplementedError

    async def run(self) -> None:
        weights = self.action_weights()
        try:
            while not self.caller.is_stopping:
                [action] = self.rng.choices([*weights], [*weights.values()])
                if not await action():
                    await self.discover_ids()
        finally:
            await self.caller.close()

    async def discover_ids(self) -> None:
        """List sessions and invocations, to learn ids for further actions."""
        for path, ids in (("/agents", self.known_ids.sessions), ("/invocations", self.known_ids.invocations)):
            response = await self.caller.send(ApiCall("list", "GET", f"{path}?limit=10"))
            items = response.body.get("items") if response.is_success else None
            if isinstance(items, list):
                ids += [item["id"] for item in items if item["id"] not in ids]

    def new_name(self, label: str) -> str:
        """A name that is unique in the run."""
        return f"{self.caller.name}-{label}-{next(self._numbers)}"
