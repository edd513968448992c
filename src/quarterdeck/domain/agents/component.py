"""Builds the agents component."""

from __future__ import annotations

from collections.abc import Collection

from quarterdeck.domain.agents.model import MintAgentToken
from quarterdeck.domain.agents.operations import liveness, reads, tokens
from quarterdeck.domain.agents.operations.heartbeat import HeartbeatRecorder
from quarterdeck.domain.agents.operations.register import Registrar
from quarterdeck.domain.agents.routes import AgentHandlers, AgentLanes, routes
from quarterdeck.domain.agents.sweeps import sweeps
from quarterdeck.engine.runtime import Component, Runtime

HEARTBEATS_GATHER_SECONDS = 0.02
"""The lane waits this long to fill a batch: 1,000 heartbeats a second then take 50 transactions instead of 300."""


class Agents:
    def __init__(self, runtime: Runtime, mint_token: MintAgentToken, launchers: Collection[str]) -> None:
        """`launchers` are the names of the configured launchers."""
        lanes = runtime.lanes
        self.heartbeats = HeartbeatRecorder()
        registrar = Registrar(launchers)
        self.register_lane = lanes.add_write_lane("agent-register", registrar.register)
        self.heartbeat_lane = lanes.add_write_lane("agent-heartbeat", self.heartbeats.record, HEARTBEATS_GATHER_SECONDS)
        self.refresh_lane = lanes.add_write_lane("agent-watch", liveness.refresh_status)
        self.terminate_lane = lanes.add_write_lane("agent-terminate", liveness.terminate_agents)
        self.token_lane = lanes.add_write_lane("agent-token", tokens.issue_tokens)
        self.show_lane = lanes.add_read_lane("agent-show", reads.show_agents)
        self.delete_lane = lanes.add_write_lane("agent-forget", liveness.delete_past_retention)
        handler_lanes = AgentLanes(
            self.register_lane.submit, self.terminate_lane.submit, self.token_lane.submit, self.show_lane.submit
        )
        handlers = AgentHandlers(runtime.engine, handler_lanes, mint_token)
        self.component = Component(routes(handlers), sweeps(runtime.cross_zone_engine))
