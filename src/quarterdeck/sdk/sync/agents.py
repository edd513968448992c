"""Written by `make sdk` from `sdk/agents.py`: do not edit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

from quarterdeck.sdk import agents
from quarterdeck.sdk.loop_thread import LoopThread
from quarterdeck.sdk.options import AgentFilter, AgentOptions, BeatOptions
from quarterdeck.sdk.work_types import Agent, AgentBeaten, AgentHealth, AgentToken, Task, TaskStatus


class Agents:
    def __init__(self, inner: agents.Agents, loop_thread: LoopThread) -> None:
        self._inner = inner
        self._loop_thread = loop_thread

    def register(self, agent_id: str, **options: Unpack[AgentOptions]) -> Agent:
        """Makes an agent, or changes what is named of it. One that was terminated begins anew."""
        return self._loop_thread.run(self._inner.register(agent_id, **options))

    def get(self, agent_id: str) -> Agent:
        return self._loop_thread.run(self._inner.get(agent_id))

    def list(self, **filters: Unpack[AgentFilter]) -> Iterator[Agent]:
        """In the order of their ids."""
        return self._loop_thread.iterate(self._inner.list(**filters))

    def health(self, agent_id: str) -> AgentHealth:
        return self._loop_thread.run(self._inner.health(agent_id))

    def tasks(self, agent_id: str, *, status: TaskStatus | None = None) -> Iterator[Task]:
        """Those it holds or held last, newest first."""
        return self._loop_thread.iterate(self._inner.tasks(agent_id, status=status))

    def heartbeat(self, agent_id: str, **options: Unpack[BeatOptions]) -> AgentBeaten:
        """Says that it lives, and what of; the answer is what it must know: which of its tasks to stop."""
        return self._loop_thread.run(self._inner.heartbeat(agent_id, **options))

    def terminate(self, agent_id: str, *, reason: str | None = None, graceful: bool = False) -> Agent:
        """At once, and its tasks are taken from it; or `graceful`: it takes no new ones, and ends with its last."""
        return self._loop_thread.run(self._inner.terminate(agent_id, reason=reason, graceful=graceful))

    def token(self, agent_id: str, *, ttl_seconds: int | None = None, attempt_token: str | None = None) -> AgentToken:
        """A token that acts as this agent alone, while it lives."""
        return self._loop_thread.run(self._inner.token(agent_id, ttl_seconds=ttl_seconds, attempt_token=attempt_token))
