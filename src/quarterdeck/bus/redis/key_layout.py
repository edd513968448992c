"""Redis keys and channels for tasks and agents, for programs that read Redis instead of the API.

Names and values are a public contract: other programs read them.

| key                                  | value                                                                       |
|--------------------------------------|-----------------------------------------------------------------------------|
| `tasks:pending:{zone}`               | sorted set: ready tasks, by (10 − priority)·10¹³ + time of creation in ms   |
| `tasks:active:{zone}`                | set: `{task}:{session key}` for each task that an agent holds               |
| `agent:tasks:{agent}`                | hash: task → when it was assigned to the agent, ms                          |
| `agent:status:{agent}`               | hash: status, current_task, last_heartbeat; deleted when the agent ends     |
| `agent:heartbeat:{agent}`            | JSON; expires 60 s after the last heartbeat                                 |
| `coordinator:stale_agents`           | sorted set: stale agents, by last heartbeat                                 |
| `session:context:{session key}`      | hash; expires an hour after the attempt was last seen running               |
| `coordinator:recovery_queue:{zone}`  | list: tasks that are waiting for a backoff to end, newest first; bounded    |
| `coordinator:lock:{zone}`            | the process that coordinates the zone; expires after 30 s                   |

The values of a task or an agent are computed from its row (`MirroredTask`, `MirroredAgent`), never from what Redis
holds, so an unnecessary write does no harm.

An agent id is unique only in its zone, and the keys of agents contain no zone. So the keys name an agent of the zone
`default` by its id, and an agent of another zone by `{zone}/{id}`. No id contains a slash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from quarterdeck.bus.redis.interfaces import SinkEntry, WriterIdentity
from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import Ref, is_path_id
from quarterdeck.core.log_event import Event

DEFAULT_ZONE = "default"
PENDING_PREFIX, ACTIVE_PREFIX, RECOVERY_PREFIX = "tasks:pending:", "tasks:active:", "coordinator:recovery_queue:"
HOLDERS_PREFIX = "quarterdeck:keys-holders:"
"""Not part of the contract: the last written holder of each task. When the holder changes, its old keys are removed."""
MIRROR_STATE_KEY = "quarterdeck:keys-whole"
"""Not part of the contract: whether all keys have been written since they were last found missing. Wiping Redis deletes
this key with the others."""
AGENT_TASKS_PREFIX, STATUS_PREFIX = "agent:tasks:", "agent:status:"
STALE_AGENTS = "coordinator:stale_agents"
LOCK_PREFIX = "coordinator:lock:"
COMMAND_CHANNELS = "coordinator:commands:*"
"""The pattern of the channels on which other programs send commands."""
PRIORITY_STEP = 10**13
TASK_EVENT_PREFIX, AGENT_EVENT_PREFIX = "task.", "agent."


def format_agent_name(ref: Ref) -> str:
    zone_id, agent_id = ref
    return agent_id if zone_id == DEFAULT_ZONE else f"{zone_id}/{agent_id}"


def parse_agent_name(name: str) -> Ref | None:
    """Return the zone and id of the agent with this name, or None if the name is not valid."""
    zone_id, slash, agent_id = name.rpartition("/")
    ref = (zone_id, agent_id) if slash else (DEFAULT_ZONE, name)
    is_canonical = not slash or zone_id != DEFAULT_ZONE
    return ref if is_canonical and all(map(is_path_id, ref)) else None


def pending_score(priority: int, created_at: Millis) -> int:
    return (10 - priority) * PRIORITY_STEP + created_at


def active_set_member(task_id: str, session_key: str) -> str:
    return f"{task_id}:{session_key}"


def possible_task_ids(member: str) -> list[str]:
    """Every possible task id in a member `{task}:{session key}`. Both parts may contain colons, so there may be several
    possible ids."""
    ends = [index for index, character in enumerate(member[:130]) if character == ":"]
    return [member[:end] for end in ends if is_path_id(member[:end])]


# -- values from rows --------------------------------------------------------------------------------------------------


class TaskHolder(NamedTuple):
    """The agent that holds a task."""

    agent_id: str
    session_key: str
    """Empty if the agent has no session key."""
    assigned_at: Millis
    started_at: Millis


class MirroredTask(NamedTuple):
    """The mirrored state of a task."""

    zone_id: str
    id: str
    score: int | None = None
    """The score in `tasks:pending`. None unless the task is ready."""
    holder: TaskHolder | None = None
    is_recovering: bool = False
    """The task is waiting for its backoff to end."""
    is_recent: bool = False
    """The task has just changed, so Redis may not have the change yet, which is not an error."""

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id


class MirroredAgent(NamedTuple):
    """The mirrored state of an agent."""

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
    """The current task. Empty if the agent holds no task. None if it holds tasks but did not report the current one."""
    at: Millis

    @property
    def ref(self) -> Ref:
        return self.zone_id, self.id

    def to_json(self) -> str:
        body = {"status": self.status, "task_id": self.task_id or "", "timestamp": self.at}
        return msgspec.json.encode(body).decode()


class KeyRemoval(NamedTuple):
    """A key to delete, or one member to remove from it."""

    key: str
    redis_type: str
    """The type of the key (set, hash, zset or list) if one member is removed. Empty to delete the whole key."""
    member: str = ""
    is_recent: bool = False


KeyOperation = MirroredTask | MirroredAgent | KeyRemoval
"""A task or an agent whose keys are to match its row, or a key to remove."""


# -- stored keys -------------------------------------------------------------------------------------------------------


class KeyFamily(NamedTuple):
    """Keys with the same prefix and the same type."""

    prefix: str
    redis_type: str


KEY_FAMILIES = (
    KeyFamily(PENDING_PREFIX, "zset"),
    KeyFamily(ACTIVE_PREFIX, "set"),
    KeyFamily(RECOVERY_PREFIX, "list"),
    KeyFamily(HOLDERS_PREFIX, "hash"),
    KeyFamily(AGENT_TASKS_PREFIX, "hash"),
    KeyFamily(STATUS_PREFIX, "hash"),
    KeyFamily(STALE_AGENTS, "zset"),
)
PREFIXES_WITH_MEMBERS = frozenset(
    {PENDING_PREFIX, ACTIVE_PREFIX, RECOVERY_PREFIX, HOLDERS_PREFIX, AGENT_TASKS_PREFIX, STALE_AGENTS}
)
"""Prefixes of the keys whose members name tasks or agents. For other keys, only the key name is compared with the
database."""


class KeyPage(NamedTuple):
    """Some of the members of one key."""

    family: KeyFamily
    key: str
    """Empty if the page is empty."""
    members: Sequence[str] = ()
    has_wrong_type: bool = False
    """The key does not have the type of its family."""


class KeyDifferences(NamedTuple):
    """The number of differences that a comparison found."""

    total: int


class KeyWriter(Protocol):
    """Writes the keys. Methods raise `BusUnavailable`, and those that take an identity also raise `WriterFenced`."""

    async def fence_older_terms(self, identity: WriterIdentity) -> None: ...

    async def write(self, identity: WriterIdentity, operations: Sequence[KeyOperation]) -> KeyDifferences:
        """Make the keys match the rows and carry out the removals. Return how many differences there were."""

    async def compare(self, operations: Sequence[KeyOperation]) -> KeyDifferences:
        """Count the differences without repairing them."""

    async def publish(self, identity: WriterIdentity, after_pos: int, entries: Sequence[SinkEntry]) -> None:
        """Publish the events after position `after_pos`, in order. Skip those that an earlier call has published."""

    async def write_heartbeats(self, heartbeats: Sequence[Heartbeat]) -> None: ...

    def scan(self) -> AsyncIterator[KeyPage]:
        """Yield the stored keys of all families, a page at a time.

        Some pages are empty, so that the caller can pause even while there is nothing to compare.
        """

    async def read_state(self) -> str:
        """Return the stored state of the mirror, or "" if none is stored."""

    async def write_state(self, identity: WriterIdentity, state: str, expected: str | None = None) -> bool:
        """Store the state of the mirror, unless `expected` is given and differs from the stored state. Return whether
        the state was written."""

    async def delete_state(self) -> None: ...

    async def write_coordinator(self, zone_ids: Sequence[str], holder: str, *, overwrite: bool) -> None:
        """Write which process coordinates these zones. Without `overwrite`, skip zones that name another process."""

    async def listen_for_commands(self, on_command: Callable[[], None]) -> None:
        """Call `on_command` after subscribing and then for each command, at most once a second. Runs until canceled."""

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


# -- published events --------------------------------------------------------------------------------------------------


class _TaskEventData(msgspec.Struct, frozen=True, rename="camel"):
    agent_id: str | None = None


_decode_task_event = msgspec.json.Decoder(_TaskEventData).decode


def build_entries(event: Event) -> list[SinkEntry]:
    """Build the message that announces a changed task or agent. It names the object but has none of its new values."""
    if event.type.startswith(TASK_EVENT_PREFIX):
        agent_id = _decode_task_event(event.data).agent_id
        return [_build_entry(event, "tasks", {"task_id": event.subject}, agent_id or "")]
    if event.type.startswith(AGENT_EVENT_PREFIX):
        return [_build_entry(event, "agents", {"agent_id": event.subject}, event.subject)]
    return []


def _build_entry(event: Event, channel_prefix: str, ids: dict[str, str], agent_id: str) -> SinkEntry:
    body = {"event": event.type.replace(".", "_"), **ids}
    fields = {"dedupe_key": event.id, "body": msgspec.json.encode(body).decode(), "agent_id": agent_id}
    channel = f"{channel_prefix}:events:{event.zone_id}"
    return SinkEntry(event.pos, 0, event.id, event.zone_id, channel, event.subject, fields)


def changed_refs(entries: Sequence[SinkEntry]) -> tuple[list[Ref], list[Ref]]:
    """Return the tasks and the agents that the entries name, each once, in order."""
    tasks = {(e.zone_id, e.subject): None for e in entries if e.stream.startswith("tasks:")}
    agents = {(e.zone_id, e.fields["agent_id"]): None for e in entries if e.fields["agent_id"]}
    return [*tasks], [*agents]
