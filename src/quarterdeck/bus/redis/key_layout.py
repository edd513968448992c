"""What is shown of tasks and agents under keys, for whoever reads Redis instead of asking: names, values and channels,
which are the seed's.

| key                                  | what stands there                                                          |
|--------------------------------------|----------------------------------------------------------------------------|
| `tasks:pending:{zone}`               | sorted set: tasks that may begin, by (10 − priority)·10¹³ + ms               |
| `tasks:active:{zone}`                | set: `{task}:{session key}` of what agents hold                             |
| `agent:tasks:{agent}`                | hash: task → when it was given to the agent, ms                             |
| `agent:status:{agent}`               | hash: status, current_task, last_heartbeat; gone when the agent has ended   |
| `agent:heartbeat:{agent}`            | JSON, for 60 s after each heartbeat                                         |
| `coordinator:stale_agents`           | sorted set: agents that are lost, by when they were last heard of           |
| `session:context:{session key}`      | hash, for an hour after the attempt was last seen to run                    |
| `coordinator:recovery_queue:{zone}`  | list: tasks that wait for the end of a backoff, the newest first; bounded   |
| `coordinator:lock:{zone}`            | the process that coordinates, for 30 s                                      |

Everything that is told of a task or an agent is what its row says (`TaskMark`, `AgentMark`), and never a step from what
stood there before: so writing twice, or too much, does no harm.

An agent's id is its own in its zone only, and the seed's keys of agents name no zone. So an agent of the zone `default`
is called by its id, and one of any other zone `{zone}/{id}`: no id holds a slash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from quarterdeck.bus.redis.interfaces import Entry, Hold
from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import is_path_id
from quarterdeck.core.log_event import Occurrence

PLAIN_ZONE = "default"
PENDING, ACTIVE, RECOVERY = "tasks:pending:", "tasks:active:", "coordinator:recovery_queue:"
HOLDERS = "quarterdeck:keys-holders:"
"""Ours: who was shown to hold a task, so that it can be taken away again when nobody knows any more who that was."""
WHOLE = "quarterdeck:keys-whole"
"""Ours: that all of it has been written since it was last found missing. It goes with everything else."""
OF_AGENT, STATUS, HEARTBEAT = "agent:tasks:", "agent:status:", "agent:heartbeat:"
STALE = "coordinator:stale_agents"
LOCK = "coordinator:lock:"
CONTEXT = "session:context:"
COMMANDS = "coordinator:commands:*"
STEP = 10**13
TASK, AGENT = "task.", "agent."
Ref = tuple[str, str]
"""(zone, id)"""


def agent_name(ref: Ref) -> str:
    zone_id, agent_id = ref
    return agent_id if zone_id == PLAIN_ZONE else f"{zone_id}/{agent_id}"


def agent_ref(name: str) -> Ref | None:
    """Whom a name means; None if nobody can be called so."""
    zone_id, slash, agent_id = name.rpartition("/")
    ref = (zone_id, agent_id) if slash else (PLAIN_ZONE, name)
    usual = not slash or zone_id != PLAIN_ZONE
    return ref if usual and all(map(is_path_id, ref)) else None


def score(priority: int, created_at: Millis) -> int:
    return (10 - priority) * STEP + created_at


def active_member(task_id: str, session_key: str) -> str:
    return f"{task_id}:{session_key}"


def tasks_meant(member: str) -> list[str]:
    """The tasks that a member of `tasks:active` may be of: both halves of it may hold colons."""
    ends = [place for place, letter in enumerate(member[:130]) if letter == ":"]
    return [member[:end] for end in ends if is_path_id(member[:end])]


# -- what rows say -----------------------------------------------------------------------------------------------------


class Holder(NamedTuple):
    agent_id: str
    session_key: str
    """Empty where the agent works without a session of its own."""
    assigned_at: Millis
    started_at: Millis


class TaskMark(NamedTuple):
    """What is to be seen of a task."""

    zone_id: str
    id: str
    score: int | None = None
    """If it may begin."""
    holder: Holder | None = None
    recovers: bool = False
    """It waits for the end of a backoff."""
    is_recent: bool = False
    """It has changed a moment ago: what is seen of it may be late, and is not wrong."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class AgentMark(NamedTuple):
    zone_id: str
    id: str
    status: str | None = None
    """None: there is none, or it has ended."""
    current_task: str = ""
    last_heartbeat: Millis = 0
    is_stale: bool = False
    is_recent: bool = False

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class Pulse(NamedTuple):
    """A heartbeat."""

    zone_id: str
    id: str
    status: str
    task_id: str | None
    """What it works on; empty if it holds nothing, None if it does and has not said on what it works."""
    at: Millis

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id

    def told(self) -> str:
        body = {"status": self.status, "task_id": self.task_id or "", "timestamp": self.at}
        return msgspec.json.encode(body).decode()


class Strike(NamedTuple):
    """Something that stands where it should not."""

    key: str
    kind: str
    """Of the key: set, hash, zset, list; or nothing, if all of it is to go."""
    member: str = ""
    is_recent: bool = False


Op = TaskMark | AgentMark | Strike


# -- what stands there -------------------------------------------------------------------------------------------------


class Family(NamedTuple):
    """Keys of one kind: how their names begin, and of what type they are."""

    prefix: str
    kind: str


FAMILIES = (
    Family(PENDING, "zset"),
    Family(ACTIVE, "set"),
    Family(RECOVERY, "list"),
    Family(HOLDERS, "hash"),
    Family(OF_AGENT, "hash"),
    Family(STATUS, "hash"),
    Family(STALE, "zset"),
)
WITH_MEMBERS = frozenset({PENDING, ACTIVE, RECOVERY, HOLDERS, OF_AGENT, STALE})
"""Of the others the name says everything."""


class Page(NamedTuple):
    """Some of what stands under one key."""

    family: Family
    key: str
    members: Sequence[str] = ()
    is_foreign: bool = False
    """It is of another type than it should be."""


class Found(NamedTuple):
    """What came of a comparison: how much was wrong."""

    wrong: int


class KeyBoard(Protocol):
    """Where keys are written. Everything raises Away, and what is told in somebody's name Fenced."""

    async def take_over(self, hold: Hold) -> None: ...

    async def write(self, hold: Hold, ops: Sequence[Op]) -> Found:
        """Has everything as it is to be."""

    async def look(self, ops: Sequence[Op]) -> Found:
        """The same without writing."""

    async def tell(self, hold: Hold, after: int, entries: Sequence[Entry]) -> None:
        """Publishes what has happened, in order: what an earlier try has published is not published twice."""

    async def beat(self, pulses: Sequence[Pulse]) -> None: ...

    def standing(self) -> AsyncIterator[Page]:
        """Everything that stands there, a page at a time. An empty one only lets others have their turn."""

    async def state(self) -> str:
        """What was said of the whole; empty if nothing was, or it went with the rest."""

    async def say(self, hold: Hold, state: str, instead_of: str | None = None) -> bool:
        """Says it; only if this still stands there, where that is given."""

    async def unsay(self) -> None: ...

    async def lock(self, zone_ids: Sequence[str], holder: str, *, surely: bool) -> None:
        """Shows who coordinates these zones: surely, or unless somebody else is shown to."""

    async def listen(self, heard: Callable[[], None]) -> None:
        """Calls `heard` whenever a command comes, until it is cancelled."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


# -- what is told ------------------------------------------------------------------------------------------------------


class _Whose(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str | None = None


_whose = msgspec.json.Decoder(_Whose).decode


def entries_of(event: Occurrence) -> list[Entry]:
    """What of an event is to be told: that something has become of a task or an agent. What has, its row says."""
    if event.type.startswith(TASK):
        agent_id = _whose(event.data).agent_id
        return [_entry(event, "tasks", {"task_id": event.subject}, agent_id or "")]
    if event.type.startswith(AGENT):
        return [_entry(event, "agents", {"agent_id": event.subject}, event.subject)]
    return []


def _entry(event: Occurrence, plane: str, named: dict[str, str], agent_id: str) -> Entry:
    said = {"event": event.type.replace(".", "_"), **named}
    fields = {"dedupe_key": event.id, "body": msgspec.json.encode(said).decode(), "agent_id": agent_id}
    channel = f"{plane}:events:{event.zone_id}"
    return Entry(event.pos, 0, event.id, event.zone_id, channel, event.subject, fields)


def touched(entries: Sequence[Entry]) -> tuple[list[Ref], list[Ref]]:
    """The tasks and the agents that entries are about, each once, in order."""
    tasks = {(e.zone_id, e.subject): None for e in entries if e.stream.startswith("tasks:")}
    agents = {(e.zone_id, e.fields["agent_id"]): None for e in entries if e.fields["agent_id"]}
    return [*tasks], [*agents]
