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

from quarterdeck.bus.redis.interfaces import SinkEntry, WriterIdentity
from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import is_path_id
from quarterdeck.core.log_event import LogEvent

DEFAULT_ZONE = "default"
PENDING, ACTIVE, RECOVERY = "tasks:pending:", "tasks:active:", "coordinator:recovery_queue:"
HOLDERS = "quarterdeck:keys-holders:"
"""Ours: who was shown to hold a task, so that it can be taken away again when nobody knows any more who that was."""
COMPLETE_MARKER = "quarterdeck:keys-whole"
"""Ours: that all of it has been written since it was last found missing. It goes with everything else."""
AGENT_TASKS, STATUS, HEARTBEAT = "agent:tasks:", "agent:status:", "agent:heartbeat:"
STALE_AGENTS = "coordinator:stale_agents"
LOCK = "coordinator:lock:"
CONTEXT = "session:context:"
COMMANDS = "coordinator:commands:*"
PRIORITY_STEP = 10**13
TASK_EVENT_PREFIX, AGENT_EVENT_PREFIX = "task.", "agent."
Ref = tuple[str, str]
"""(zone, id)"""


def format_agent_name(ref: Ref) -> str:
    zone_id, agent_id = ref
    return agent_id if zone_id == DEFAULT_ZONE else f"{zone_id}/{agent_id}"


def parse_agent_name(name: str) -> Ref | None:
    """Whom a name means; None if nobody can be called so."""
    zone_id, slash, agent_id = name.rpartition("/")
    ref = (zone_id, agent_id) if slash else (DEFAULT_ZONE, name)
    is_canonical = not slash or zone_id != DEFAULT_ZONE
    return ref if is_canonical and all(map(is_path_id, ref)) else None


def pending_score(priority: int, created_at: Millis) -> int:
    return (10 - priority) * PRIORITY_STEP + created_at


def active_member(task_id: str, session_key: str) -> str:
    return f"{task_id}:{session_key}"


def possible_task_ids(member: str) -> list[str]:
    """The tasks that a member of `tasks:active` may be of: both halves of it may hold colons."""
    ends = [index for index, character in enumerate(member[:130]) if character == ":"]
    return [member[:end] for end in ends if is_path_id(member[:end])]


# -- what rows say -----------------------------------------------------------------------------------------------------


class TaskHolder(NamedTuple):
    agent_id: str
    session_key: str
    """Empty where the agent works without a session of its own."""
    assigned_at: Millis
    started_at: Millis


class MirroredTask(NamedTuple):
    """What is to be seen of a task."""

    zone_id: str
    id: str
    score: int | None = None
    """If it may begin."""
    holder: TaskHolder | None = None
    is_recovering: bool = False
    """It waits for the end of a backoff."""
    is_recent: bool = False
    """It has changed a moment ago: what is seen of it may be late, and is not wrong."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class MirroredAgent(NamedTuple):
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


class Heartbeat(NamedTuple):
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

    def to_json(self) -> str:
        body = {"status": self.status, "task_id": self.task_id or "", "timestamp": self.at}
        return msgspec.json.encode(body).decode()


class KeyRemoval(NamedTuple):
    """Something that stands where it should not."""

    key: str
    redis_type: str
    """Of the key: set, hash, zset, list; or nothing, if all of it is to go."""
    member: str = ""
    is_recent: bool = False


KeyOperation = MirroredTask | MirroredAgent | KeyRemoval


# -- what stands there -------------------------------------------------------------------------------------------------


class KeyFamily(NamedTuple):
    """Keys of one kind: how their names begin, and of what type they are."""

    prefix: str
    redis_type: str


KEY_FAMILIES = (
    KeyFamily(PENDING, "zset"),
    KeyFamily(ACTIVE, "set"),
    KeyFamily(RECOVERY, "list"),
    KeyFamily(HOLDERS, "hash"),
    KeyFamily(AGENT_TASKS, "hash"),
    KeyFamily(STATUS, "hash"),
    KeyFamily(STALE_AGENTS, "zset"),
)
PREFIXES_WITH_MEMBERS = frozenset({PENDING, ACTIVE, RECOVERY, HOLDERS, AGENT_TASKS, STALE_AGENTS})
"""Of the others the name says everything."""


class KeyPage(NamedTuple):
    """Some of what stands under one key."""

    family: KeyFamily
    key: str
    members: Sequence[str] = ()
    has_wrong_type: bool = False
    """It is of another type than it should be."""


class KeyDifferences(NamedTuple):
    """What came of a comparison: how much was wrong."""

    total: int


class KeyWriter(Protocol):
    """Where keys are written. Everything raises Away, and what is told in somebody's name Fenced."""

    async def take_over(self, identity: WriterIdentity) -> None: ...

    async def write(self, identity: WriterIdentity, operations: Sequence[KeyOperation]) -> KeyDifferences:
        """Has everything as it is to be."""

    async def compare(self, operations: Sequence[KeyOperation]) -> KeyDifferences:
        """The same without writing."""

    async def publish(self, identity: WriterIdentity, after: int, entries: Sequence[SinkEntry]) -> None:
        """Publishes what has happened, in order: what an earlier try has published is not published twice."""

    async def write_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None: ...

    def scan(self) -> AsyncIterator[KeyPage]:
        """Everything that stands there, a page at a time. An empty one only lets others have their turn."""

    async def read_state(self) -> str:
        """What was said of the whole; empty if nothing was, or it went with the rest."""

    async def write_state(self, identity: WriterIdentity, state: str, expected: str | None = None) -> bool:
        """Says it; only if this still stands there, where that is given."""

    async def delete_state(self) -> None: ...

    async def show_coordinator(self, zone_ids: Sequence[str], holder: str, *, overwrite: bool) -> None:
        """Shows who coordinates these zones: surely, or unless somebody else is shown to."""

    async def listen(self, on_command: Callable[[], None]) -> None:
        """Calls `heard` whenever a command comes, until it is cancelled."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


# -- what is told ------------------------------------------------------------------------------------------------------


class _TaskEventData(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str | None = None


_decode_task_event = msgspec.json.Decoder(_TaskEventData).decode


def build_entries(event: LogEvent) -> list[SinkEntry]:
    """What of an event is to be told: that something has become of a task or an agent. What has, its row says."""
    if event.type.startswith(TASK_EVENT_PREFIX):
        agent_id = _decode_task_event(event.data).agent_id
        return [_build_entry(event, "tasks", {"task_id": event.subject}, agent_id or "")]
    if event.type.startswith(AGENT_EVENT_PREFIX):
        return [_build_entry(event, "agents", {"agent_id": event.subject}, event.subject)]
    return []


def _build_entry(event: LogEvent, channel_prefix: str, ids: dict[str, str], agent_id: str) -> SinkEntry:
    body = {"event": event.type.replace(".", "_"), **ids}
    fields = {"dedupe_key": event.id, "body": msgspec.json.encode(body).decode(), "agent_id": agent_id}
    channel = f"{channel_prefix}:events:{event.zone_id}"
    return SinkEntry(event.pos, 0, event.id, event.zone_id, channel, event.subject, fields)


def changed_refs(entries: Sequence[SinkEntry]) -> tuple[list[Ref], list[Ref]]:
    """The tasks and the agents that entries are about, each once, in order."""
    tasks = {(e.zone_id, e.subject): None for e in entries if e.stream.startswith("tasks:")}
    agents = {(e.zone_id, e.fields["agent_id"]): None for e in entries if e.fields["agent_id"]}
    return [*tasks], [*agents]
