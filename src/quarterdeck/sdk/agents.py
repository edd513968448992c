"""Agents: registered workers, their health, and tokens that act for one agent only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from quarterdeck.sdk.options import AgentFilter, AgentOptions, BeatOptions
from quarterdeck.sdk.resource import WorkResource, encode_camel_options, without_none
from quarterdeck.sdk.work_types import Agent, AgentBeaten, AgentHealth, AgentToken, Task, TaskStatus, WorkPage


class Agents(WorkResource):
    async def register(self, agent_id: str, **options: Unpack[AgentOptions]) -> Agent:
        """Register an agent, or update the given fields if it is registered. Revives a terminated agent."""
        body = encode_camel_options(AgentOptions, options)
        return await self._change("PUT", self._path("agents", agent_id), Agent, body)

    async def get(self, agent_id: str) -> Agent:
        return await self._get(self._path("agents", agent_id), Agent)

    def list(self, **filters: Unpack[AgentFilter]) -> AsyncIterator[Agent]:
        """Iterate over agents, ordered by id."""
        enabled = filters.get("coordinator_enabled")
        query = {
            "status": filters.get("status"),
            "capability": filters.get("capability"),
            "coordinatorEnabled": None if enabled is None else "true" if enabled else "false",
        }
        return self._iter_items(self._path("agents"), query, WorkPage[Agent])

    async def health(self, agent_id: str) -> AgentHealth:
        return await self._get(self._path("agents", agent_id, "health"), AgentHealth)

    def tasks(self, agent_id: str, *, status: TaskStatus | None = None) -> AsyncIterator[Task]:
        """Iterate over the tasks that the agent holds or was the last to hold, newest first."""
        return self._iter_items(self._path("agents", agent_id, "tasks"), {"status": status}, WorkPage[Task])

    async def heartbeat(self, agent_id: str, **options: Unpack[BeatOptions]) -> AgentBeaten:
        """Send a heartbeat. The response lists tasks to cancel or pause, and warnings."""
        body = encode_camel_options(BeatOptions, options)
        return await self._change("POST", self._path("agents", agent_id, "heartbeat"), AgentBeaten, body)

    async def terminate(self, agent_id: str, *, reason: str | None = None, graceful: bool = False) -> Agent:
        """Terminate the agent and take back its tasks.

        With `graceful`, the agent gets no new tasks and ends after its last one.
        """
        body = without_none({"graceful": graceful, "reason": reason})
        return await self._change("POST", self._path("agents", agent_id, "terminate"), Agent, body)

    async def token(
        self, agent_id: str, *, ttl_seconds: int | None = None, attempt_token: str | None = None
    ) -> AgentToken:
        """Create a token that acts for this agent only. It becomes invalid when the agent is terminated."""
        body = without_none({"ttlSeconds": ttl_seconds, "attemptToken": attempt_token})
        path = self._path("agents", agent_id, "token")
        # A retry after a lost response creates a second token. The unused one does no harm; it only adds a log entry.
        return await self._change("POST", path, AgentToken, body)
