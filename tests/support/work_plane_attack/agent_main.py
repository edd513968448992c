"""One agent as a program: `python -m tests.support.work_plane_attack.agent_main JSON`. The JSON is an `AgentConfig`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import msgspec

from tests.support.work_plane_attack.history_writer import HistoryWriter

READY_LINE = "ready"


class AgentConfig(msgspec.Struct, frozen=True):
    kind: str
    """`sdk` or `http`."""
    agent: str
    client: str
    """The name of this process. An agent that is restarted is another client."""
    urls: list[str]
    token: str
    zone: str
    history: str
    seed: str
    interval_seconds: int = 1
    threshold_seconds: int = 3


def main(config_json: str) -> None:
    config = msgspec.json.decode(config_json, type=AgentConfig)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    history = HistoryWriter(Path(config.history), config.client, config.zone)
    # Each kind imports only what it needs: up to twenty agents start at once.
    if config.kind == "sdk":
        from tests.support.work_plane_attack.sdk_agent import run_agent

        asyncio.run(run_agent(config, history))
    else:
        from tests.support.work_plane_attack.http_agent import HttpAgent

        asyncio.run(HttpAgent(config, history).run())


if __name__ == "__main__":
    main(sys.argv[1])
