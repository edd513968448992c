"""Redis keys and channels of tasks and agents, for readers that use Redis instead of the API.

Names and values are a public contract: other programs read them.

| key                                  | value                                                                       |
|--------------------------------------|-----------------------------------------------------------------------------|
| `tasks:pending:{zone}`               | sorted set: ready tasks, by (10 − priority)·10¹³ + ms                       |
| `tasks:active:{zone}`                | set: `{task}:{session key}` of the tasks that agents hold                   |
| `agent:tasks:{agent}`                | hash: task → when it was assigned to the agent, ms                          |
| `agent:status:{agent}`               | hash: status, current_task, last_heartbeat; deleted when the agent ends     |
| `agent:heartbeat:{agent}`            | JSON, for 60 s after each heartbeat                                         |
| `coordinator:stale_agents`           | sorted set: stale agents, by last heartbeat                                 |
| `session:context:{session key}`      | hash, for an hour after the attempt was last seen running                   |
| `coordinator:recovery_queue:{zone}`  | list: tasks that wait for the end of a backoff, newest first; bounded       |
| `coordinator:lock:{zone}`            | the process that coordinates the zone, for 30 s                             |

The values of a task or an agent are computed from its row (`MirroredTask`, `MirroredAgent`), never from what Redis
holds: writing twice, or too much, does no harm.

An agent id is unique in its zone only, and these keys of agents contain no zone. So an agent of the zone `default` has
its id as its name, and one of another zone `{zone}/{id}`: no id contains a slash.
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
"""Our own: the holder that is shown for a task, so that its keys can be removed when the row no longer names it."""
COMPLETE_MARKER = "quarterdeck:keys-whole"
"""Our own: whether all keys have been written since they were last found missing. A wipe deletes it with the keys."""
AGENT_TASKS, STATUS, HEARTBEAT = "agent:tasks:", "agent:status:", "agent:heartbeat:"
STALE_AGENTS = "coordinator:stale_agents"
LOCK = "coordinator:lock:"
CONTEXT = "session:context:"
COMMANDS = "coordinator:commands:*"
"""The channels on which other programs send commands."""
PRIORITY_STEP = 10**13
TASK_EVENT_PREFIX, AGENT_EVENT_PREFIX = "task.", "agent."
Ref = tuple[str, str]
"""(zone, id)"""


def format_agent_name(ref: Ref) -> str:
    zone_id, agent_id = ref
    return agent_id if zone_id == DEFAULT_ZONE else f"{zone_id}/{agent_id}"


def parse_agent_name(name: str) -> Ref | None:
    """The agent with this name; None if the name is not valid."""
    zone_id, slash, agent_id = name.rpartition("/")
    ref = (zone_id, agent_id) if slash else (DEFAULT_ZONE, name)
    is_canonical = not slash or zone_id != DEFAULT_ZONE
    return ref if is_canonical and all(map(is_path_id, ref)) else None


def pending_score(priority: int, created_at: Millis) -> int:
    return (10 - priority) * PRIORITY_STEP + created_at


def active_member(task_id: str, session_key: str) -> str:
    return f"{task_id}:{session_key}"


def possible_task_ids(member: str) -> list[str]:
    """The possible task ids of a member of `tasks:active`: both of its parts may contain colons."""
    ends = [index for index, character in enumerate(member[:130]) if character == ":"]
    return [member[:end] for end in ends if is_path_id(member[:end])]


# -- values from rows --------------------------------------------------------------------------------------------------


class TaskHolder(NamedTuple):
    agent_id: str
    session_key: str
    """Empty if the agent works without a session key."""
    assigned_at: Millis
    started_at: Millis


class MirroredTask(NamedTuple):
    """The mirrored state of a task."""

    zone_id: str
    id: str
    score: int | None = None
    """Set if the task is ready."""
    holder: TaskHolder | None = None
    is_recovering: bool = False
    """It waits for the end of a backoff."""
    is_recent: bool = False
    """It has just changed: Redis may be behind, which is not an error."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class MirroredAgent(NamedTuple):
    zone_id: str
    id: str
    status: str | None = None
    """None: the agent does not exist or has ended."""
    current_task: str = ""
    last_heartbeat: Millis = 0
    is_stale: bool = False
    is_recent: bool = False

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class Heartbeat(NamedTuple):
    zone_id: str
    id: str
    status: str
    task_id: str | None
    """The current task. Empty if the agent holds none; None if it holds some and did not report which is current."""
    at: Millis

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id

    def to_json(self) -> str:
        body = {"status": self.status, "task_id": self.task_id or "", "timestamp": self.at}
        return msgspec.json.encode(body).decode()


class KeyRemoval(NamedTuple):
    """A key or member that must be removed."""

    key: str
    redis_type: str
    """Type of the key: set, hash, zset, list. Empty to delete the complete key."""
    member: str = ""
    is_recent: bool = False


KeyOperation = MirroredTask | MirroredAgent | KeyRemoval


# -- stored keys -------------------------------------------------------------------------------------------------------


class KeyFamily(NamedTuple):
    """Keys of one kind: the prefix of their names, and their type."""

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
"""The keys of the other families have no members to compare, only a name."""


class KeyPage(NamedTuple):
    """Some of the members of one key."""

    family: KeyFamily
    key: str
    members: Sequence[str] = ()
    has_wrong_type: bool = False
    """The key has another type than its family."""


class KeyDifferences(NamedTuple):
    """The result of a comparison: how many differences were found."""

    total: int


class KeyWriter(Protocol):
    """Writes the keys. All methods raise `BusUnavailable`; those with an identity also `WriterFenced`."""

    async def take_over(self, identity: WriterIdentity) -> None: ...

    async def write(self, identity: WriterIdentity, operations: Sequence[KeyOperation]) -> KeyDifferences:
        """Make the keys match the rows and carry out the removals. Return the differences that were found."""

    async def compare(self, operations: Sequence[KeyOperation]) -> KeyDifferences:
        """Count the differences without writing."""

    async def publish(self, identity: WriterIdentity, after: int, entries: Sequence[SinkEntry]) -> None:
        """Publish events in order. Events that an earlier try has published are not published twice."""

    async def write_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None: ...

    def scan(self) -> AsyncIterator[KeyPage]:
        """All stored keys, a page at a time. An empty page only lets other tasks run."""

    async def read_state(self) -> str:
        """The stored state of all keys; empty if there is none, or if it was wiped with the keys."""

    async def write_state(self, identity: WriterIdentity, state: str, expected: str | None = None) -> bool:
        """Store the state of all keys; if `expected` is given, only if that is the stored one."""

    async def delete_state(self) -> None: ...

    async def show_coordinator(self, zone_ids: Sequence[str], holder: str, *, overwrite: bool) -> None:
        """Show which process coordinates these zones: always, or only if no other process is shown."""

    async def listen(self, on_command: Callable[[], None]) -> None:
        """Call `on_command` whenever a command arrives, until canceled."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


# -- published events --------------------------------------------------------------------------------------------------


class _TaskEventData(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str | None = None


_decode_task_event = msgspec.json.Decoder(_TaskEventData).decode


def build_entries(event: LogEvent) -> list[SinkEntry]:
    """The message of an event of a task or an agent: that it changed. The new values come from its row."""
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
    """The tasks and agents that the entries are about, each once, in order."""
    tasks = {(e.zone_id, e.subject): None for e in entries if e.stream.startswith("tasks:")}
    agents = {(e.zone_id, e.fields["agent_id"]): None for e in entries if e.fields["agent_id"]}
    return [*tasks], [*agents]
