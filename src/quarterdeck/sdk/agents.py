"""Agents: registered workers, how they fare, and tokens that act as one of them alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Unpack

from quarterdeck.sdk.options import AgentFilter, AgentOptions, BeatOptions, encode_camel_options
from quarterdeck.sdk.resource import WorkResource
from quarterdeck.sdk.transport import ApiCall
from quarterdeck.sdk.work_types import Agent, AgentBeaten, AgentHealth, AgentToken, Task, TaskStatus, WorkPage


class Agents(WorkResource):
    async def register(self, agent_id: str, **options: Unpack[AgentOptions]) -> Agent:
        """Makes an agent, or changes what is named of it. One that was terminated begins anew."""
        body = encode_camel_options(AgentOptions, options)
        return await self._call_in_zone(
            ApiCall("PUT", self._path("agents", agent_id), body=body, is_idempotent=True), Agent
        )

    async def get(self, agent_id: str) -> Agent:
        return await self._call_in_zone(ApiCall("GET", self._path("agents", agent_id)), Agent)

    def list(self, **filters: Unpack[AgentFilter]) -> AsyncIterator[Agent]:
        """In the order of their ids."""
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
        """Those it holds or held last, newest first."""
        return self._iter_items_in_zone(self._path("agents", agent_id, "tasks"), {"status": status}, WorkPage[Task])

    async def heartbeat(self, agent_id: str, **options: Unpack[BeatOptions]) -> AgentBeaten:
        """Says that it lives, and what of; the answer is what it must know: which of its tasks to stop."""
        body = encode_camel_options(BeatOptions, options)
        path = self._path("agents", agent_id, "heartbeat")
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), AgentBeaten)

    async def terminate(self, agent_id: str, *, reason: str | None = None, graceful: bool = False) -> Agent:
        """At once, and its tasks are taken from it; or `graceful`: it takes no new ones, and ends with its last."""
        body: dict[str, object] = {"graceful": graceful, **({} if reason is None else {"reason": reason})}
        path = self._path("agents", agent_id, "terminate")
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), Agent)

    async def token(
        self, agent_id: str, *, ttl_seconds: int | None = None, attempt_token: str | None = None
    ) -> AgentToken:
        """A token that acts as this agent alone, while it lives."""
        fields = {"ttlSeconds": ttl_seconds, "attemptToken": attempt_token}
        body = {name: value for name, value in fields.items() if value is not None}
        path = self._path("agents", agent_id, "token")
        # Made twice after a lost answer, it is two tokens, of which one is nobody's: no harm but its entry in the log.
        return await self._call_in_zone(ApiCall("POST", path, body=body, is_idempotent=True), AgentToken)
