"""What a launcher is told, what it may say, and what of a process's last words is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

import msgspec

from quarterdeck.domain.tasks.model.rows import FullTask

LABEL_TITLE_MAX = 30
KEY_MAX = 255
"""Characters of a session's key."""
TAIL_MAX = 8_192
"""Characters that are kept of what a process has said."""
SPAWN_PATH = "/api/agents/spawn"
TOKEN_VARIABLE = "QD_TOKEN"  # noqa: S105 - a name, no secret
SERVER_VARIABLES = ("QD_SERVER", "QD_URL")
"""Where the server is; the second is the name by which `qd` finds it."""


class SpawnContext(msgspec.Struct, frozen=True, rename="camel"):
    task_title: str
    task_description: str | None
    input_context: msgspec.Raw
    checkpoint_data: msgspec.Raw


class SpawnRequest(msgspec.Struct, frozen=True, rename="camel"):
    """What a launcher is told of a task."""

    zone_id: str = msgspec.field(name="workspaceId")
    agent_id: str
    task_id: str
    label: str
    context: SpawnContext
    attempt: int
    attempt_token: str
    """Whoever works on it speaks for the attempt by this, or by an agent's token that was made for it."""
    task_type: str
    timeout_seconds: int | None


class _SpawnedSession(msgspec.Struct, rename="camel"):
    session_key: str


class _SpawnResponse(msgspec.Struct):
    session: _SpawnedSession


def encode_spawn_request(full_task: FullTask, input_context: str, checkpoint_data: str) -> bytes:
    """The JSON that a launcher is given. What is secret is in the clear or masked as it is handed in here."""
    task, content = full_task.task, full_task.content
    assert task.agent_id is not None
    assert task.attempt_token is not None
    return msgspec.json.encode(
        SpawnRequest(
            zone_id=task.zone_id,
            agent_id=task.agent_id,
            task_id=task.id,
            label=f"task:{task.id}:{content.title[:LABEL_TITLE_MAX]}",
            context=SpawnContext(
                content.title,
                content.description,
                msgspec.Raw(input_context.encode()),
                msgspec.Raw(checkpoint_data.encode()),
            ),
            attempt=task.attempt,
            attempt_token=task.attempt_token,
            task_type=task.task_type,
            timeout_seconds=task.timeout_seconds,
        )
    )


def parse_session_key(body: bytes) -> str | None:
    """By which a gateway knows the session it has started; None if it has not said so."""
    try:
        key = msgspec.json.decode(body, type=_SpawnResponse).session.session_key
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return key if 0 < len(key) <= KEY_MAX and key.isprintable() else None


def can_send_secrets(url: str) -> bool:
    """Whether nobody between here and there can read what is sent: over TLS, or without leaving the machine."""
    scheme, _, rest = url.partition("://")
    if scheme == "https":
        return True
    authority = rest.partition("/")[0].rpartition("@")[2]
    host = authority[1:].partition("]")[0] if authority.startswith("[") else authority.partition(":")[0]
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def build_environment(
    allowed: Iterable[str], server_environment: Mapping[str, str], token: str, server: str | None
) -> dict[str, str]:
    """Of the server's own environment only what is named, and nothing that stands for the server itself: its keys and
    its database are none of an agent's business, whoever names them."""
    inherited = {
        name: server_environment[name] for name in allowed if name in server_environment and not name.startswith("QD_")
    }
    server_variables = {} if server is None else dict.fromkeys(SERVER_VARIABLES, server)
    return {**inherited, **server_variables, TOKEN_VARIABLE: token}


def output_tail(output: bytes) -> str:
    """What is kept of it: the end, where it says why."""
    text = output.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
    return text if len(text) <= TAIL_MAX else f"…{text[-TAIL_MAX:]}"
