"""The processes of the agents. Each has a post; whoever falls there is followed by another."""

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

from tests.support.children import ended_with_parent, plain_environment, tail
from tests.support.labouring.agent import Post
from tests.support.source import ROOT

PLAIN_EVERY = 3
"""Every so many-th agent is a plain one, which misbehaves."""
WAIT = 30.0


@dataclass(frozen=True)
class Place:
    """Where agents work, and what they show for it."""

    urls: Sequence[str]
    token: str
    zone: str
    seed: str
    directory: Path
    threshold_seconds: int


class AgentProcess:
    def __init__(self, post: Post, process: subprocess.Popen[bytes], log: Path) -> None:
        self.post = post
        self.log = log
        self.is_frozen = False
        self._process = process

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=WAIT)

    def freeze(self) -> None:
        self.is_frozen = True
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.is_frozen = False
        self._process.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        if self.runs:
            self._process.terminate()

    def wait(self) -> int:
        return self._process.wait(timeout=WAIT)


class Crew:
    def __init__(self, place: Place, number: int) -> None:
        self._place = place
        self._names = itertools.count(1)
        self._lives: Counter[str] = Counter()
        self.slots = [self._new(slot) for slot in range(number)]
        self.everybody = [*self.slots]
        self.happened: Counter[str] = Counter()
        self._vacant: set[int] = set()
        """Places that whoever emptied them will fill."""

    @property
    def histories(self) -> list[Path]:
        return [Path(agent.post.history) for agent in self.everybody if Path(agent.post.history).exists()]

    @property
    def awake(self) -> list[int]:
        return [slot for slot, agent in enumerate(self.slots) if agent.runs and not agent.is_frozen]

    def kill(self, slot: int) -> None:
        """Whoever does this puts another in its place."""
        self.happened["killed"] += 1
        self._vacant.add(slot)
        self.slots[slot].kill()

    def freeze(self, slot: int) -> None:
        self.happened["frozen"] += 1
        self.slots[slot].freeze()

    def replace(self, slot: int, agent: str | None = None) -> None:
        """By another process: under the same name, or as somebody new."""
        self.happened["begun anew" if agent else "replaced"] += 1
        self.slots[slot] = self._new(slot, agent)
        self._vacant.discard(slot)
        self.everybody.append(self.slots[slot])

    def replace_the_fallen(self) -> None:
        for slot, agent in enumerate(self.slots):
            if not agent.runs and slot not in self._vacant:
                self.happened["fallen"] += 1
                self.replace(slot)

    def stop(self) -> None:
        for agent in self.slots:
            agent.ask_to_stop()
        for agent in self.slots:
            agent.wait()

    def close(self) -> None:
        for agent in self.everybody:
            if agent.runs:
                agent.kill()

    def logs(self) -> str:
        return "\n".join(f"--- {agent.post.client}\n{tail(agent.log, 25)}" for agent in self.everybody[-25:])

    def _new(self, slot: int, agent: str | None = None) -> AgentProcess:
        place = self._place
        name = agent or f"agent-{next(self._names):02}"
        self._lives[name] += 1
        client = f"{name}.{self._lives[name]}"
        first = slot % len(place.urls)
        post = Post(
            kind="plain" if slot % PLAIN_EVERY == PLAIN_EVERY - 1 else "sdk",
            agent=name,
            client=client,
            urls=[*place.urls[first:], *place.urls[:first]],
            token=place.token,
            zone=place.zone,
            history=str(place.directory / f"{client}.jsonl"),
            seed=place.seed,
            threshold_seconds=place.threshold_seconds,
        )
        log = place.directory / f"{client}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.labouring.agent", msgspec.json.encode(post).decode()],
                cwd=ROOT,
                env=plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=ended_with_parent(signal.SIGKILL),
            )
        return AgentProcess(post, process, log)
