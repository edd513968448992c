"""The processes of the agents. Each has a slot, and an agent that ends is replaced in its slot."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.support.child_processes import minimal_environment, signal_on_parent_death, tail
from tests.support.source import ROOT
from tests.support.work_plane_attack.agent_main import AgentConfig

HTTP_AGENT_EVERY = 3
"""One of this many agents is an HTTP agent, which misbehaves."""
WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class AgentPoolConfig:
    """What all agents of a pool share."""

    urls: Sequence[str]
    token: str
    zone: str
    seed: str
    directory: Path
    threshold_seconds: int


class AgentProcess:
    def __init__(self, config: AgentConfig, process: subprocess.Popen[bytes], log: Path) -> None:
        self.config = config
        self.log = log
        self.is_frozen = False
        self._process = process

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=WAIT_SECONDS)

    def freeze(self) -> None:
        self.is_frozen = True
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.is_frozen = False
        self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        if self.is_running:
            self._process.terminate()

    def wait(self) -> int:
        return self._process.wait(timeout=WAIT_SECONDS)


class AgentPool:
    def __init__(self, config: AgentPoolConfig, count: int) -> None:
        self._config = config
        self._names = itertools.count(1)
        self._starts: Counter[str] = Counter()
        self.slots = [self._start_agent(slot) for slot in range(count)]
        self.all_agents = [*self.slots]
        self.counts: Counter[str] = Counter()
        self._being_replaced: set[int] = set()
        """Slots whose agent was killed on purpose. The fault injector replaces it, not `replace_dead`."""

    @property
    def histories(self) -> list[Path]:
        return [Path(agent.config.history) for agent in self.all_agents if Path(agent.config.history).exists()]

    @property
    def running_slots(self) -> list[int]:
        return [slot for slot, agent in enumerate(self.slots) if agent.is_running and not agent.is_frozen]

    def kill(self, slot: int) -> None:
        """Kill an agent. The caller must replace it."""
        self.counts["killed"] += 1
        self._being_replaced.add(slot)
        self.slots[slot].kill()

    def freeze(self, slot: int) -> None:
        self.counts["frozen"] += 1
        self.slots[slot].freeze()

    def replace(self, slot: int, agent: str | None = None) -> None:
        """Start a new process in a slot: as the given agent, or as a new one."""
        self.counts["restarted" if agent else "replaced"] += 1
        self.slots[slot] = self._start_agent(slot, agent)
        self._being_replaced.discard(slot)
        self.all_agents.append(self.slots[slot])

    def replace_dead(self) -> None:
        for slot, agent in enumerate(self.slots):
            if not agent.is_running and slot not in self._being_replaced:
                self.counts["died"] += 1
                self.replace(slot)

    def stop(self) -> None:
        for agent in self.slots:
            agent.terminate()
        for agent in self.slots:
            agent.wait()

    def close(self) -> None:
        for agent in self.all_agents:
            if agent.is_running:
                agent.kill()

    def logs(self) -> str:
        return "\n".join(f"--- {agent.config.client}\n{tail(agent.log, 25)}" for agent in self.all_agents[-25:])

    def _start_agent(self, slot: int, agent: str | None = None) -> AgentProcess:
        pool_config = self._config
        name = agent or f"agent-{next(self._names):02}"
        self._starts[name] += 1
        client = f"{name}.{self._starts[name]}"
        first = slot % len(pool_config.urls)
        config = AgentConfig(
            kind="http" if slot % HTTP_AGENT_EVERY == HTTP_AGENT_EVERY - 1 else "sdk",
            agent=name,
            client=client,
            urls=[*pool_config.urls[first:], *pool_config.urls[:first]],
            token=pool_config.token,
            zone=pool_config.zone,
            history=str(pool_config.directory / f"{client}.jsonl"),
            seed=pool_config.seed,
            threshold_seconds=pool_config.threshold_seconds,
        )
        log = pool_config.directory / f"{client}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.support.work_plane_attack.agent_main",
                    msgspec.json.encode(config).decode(),
                ],
                cwd=ROOT,
                env=minimal_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=signal_on_parent_death(signal.SIGKILL),
            )
        return AgentProcess(config, process, log)
