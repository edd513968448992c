"""Agents: registered workers, their health, and tokens that act for one agent only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from quarterdeck.sdk.options import AgentFilter, AgentOptions, BeatOptions, encode_camel_options
from quarterdeck.sdk.resource import WorkResource
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.work_types import Agent, AgentBeaten, AgentHealth, AgentToken, Task, TaskStatus, WorkPage


class Agents(WorkResource):
    async def register(self, agent_id: str, **options: Unpack[AgentOptions]) -> Agent:
        """Register an agent, or update the given fields if it is registered. Revives a terminated agent."""
        body = encode_camel_options(AgentOptions, options)
        return await self._call_in_zone(
            ApiCall("PUT", self._path("agents", agent_id), body=body, is_idempotent=True), Agent
        )

    async def get(self, agent_id: str) -> Agent:
        return await self._call_in_zone(ApiCall("GET", self._path("agents", agent_id)), Agent)

    def list(self, **filters: Unpack[AgentFilter]) -> AsyncIterator[Agent]:
        """Iterate over agents, ordered by id."""
        enabled = filters.get("coordinator_enabled")
        query = {
            "status": filters.get("status"),
            "capability": filters.get("capability"),
            "coordinatorEnabled": None if enabled is None else "true" if enabled else "false",
        }
        return self._iter_items_in_zone(self._path("agents"), query, WorkPage[Agent])

    async def health(self, agent_id: str) -> AgentHealth:
        return await self._call_in_zone(ApiCall("GET", self._path("agents", agent_id, "health")), AgentHealth)

    def tasks(self, agent_id: str, *, status: TaskStatus | None = None) -> AsyncIterator[Task]:
        """Iterate over the tasks that the agent holds or was the last to hold, newest first."""
        return self._iter_items_in_zone(self._path("agents", agent_id, "tasks"), {"status": status}, WorkPage[Task])

    async def heartbeat(self, agent_id: str, **options: Unpack[BeatOptions]) -> AgentBeaten:
        """Send a heartbeat. The response lists tasks to cancel or pause, and warnings."""
        body = encode_camel_options(BeatOptions, options)
        path = self._path("agents", agent_id, "heartbeat")
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), AgentBeaten)

    async def terminate(self, agent_id: str, *, reason: str | None = None, graceful: bool = False) -> Agent:
        """Terminate the agent and take back its tasks.

        With `graceful`, the agent gets no new tasks and ends after its last one.
        """
        body: dict[str, object] = {"graceful": graceful, **({} if reason is None else {"reason": reason})}
        path = self._path("agents", agent_id, "terminate")
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), Agent)

    async def token(
        self, agent_id: str, *, ttl_seconds: int | None = None, attempt_token: str | None = None
    ) -> AgentToken:
        """Create a token that acts for this agent only. It becomes invalid when the agent is terminated."""
        fields = {"ttlSeconds": ttl_seconds, "attemptToken": attempt_token}
        body = {name: value for name, value in fields.items() if value is not None}
        path = self._path("agents", agent_id, "token")
        # A retry after a lost response creates a second token. The unused one does no harm; it only adds a log entry.
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), AgentToken)
