"""The request to a launcher, its response, the environment of a process, and the part of its output that is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address

import msgspec

from quarterdeck.domain.tasks.model.rows import FullTask

LABEL_TITLE_MAX = 30
SESSION_KEY_MAX = 255
"""Maximum number of characters of a session key."""
TAIL_MAX = 8_192
"""Maximum number of characters of output that are kept."""
SPAWN_PATH = "/api/agents/spawn"
TOKEN_VARIABLE = "QD_TOKEN"  # noqa: S105 - a name, not a secret
SERVER_VARIABLES = ("QD_SERVER", "QD_URL")
"""Both hold the URL of the server. `qd` reads the second."""


class SpawnContext(msgspec.Struct, frozen=True, rename="camel"):
    task_title: str
    task_description: str | None
    input_context: msgspec.Raw
    checkpoint_data: msgspec.Raw


class SpawnRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The body that is sent to a gateway or to a process."""

    zone_id: str = msgspec.field(name="workspaceId")
    agent_id: str
    task_id: str
    label: str
    context: SpawnContext
    attempt: int
    attempt_token: str
    """Authorizes reports about the attempt, as does an agent token that was issued for it."""
    task_type: str
    timeout_seconds: int | None


class _SpawnedSession(msgspec.Struct, rename="camel"):
    session_key: str


class _SpawnResponse(msgspec.Struct):
    session: _SpawnedSession


def encode_spawn_request(full_task: FullTask, input_context: str, checkpoint_data: str) -> bytes:
    """Encode the JSON for a launcher. The caller has decrypted or masked the secrets in the input and checkpoint."""
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
    """Return the session key in a gateway's response; None if it is missing or invalid."""
    try:
        key = msgspec.json.decode(body, type=_SpawnResponse).session.session_key
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return key if 0 < len(key) <= SESSION_KEY_MAX and key.isprintable() else None


def can_send_secrets(url: str) -> bool:
    """Whether the connection is private: TLS or a loopback address."""
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
    allowed: Iterable[str], server_environment: Mapping[str, str], token: str, server_url: str | None
) -> dict[str, str]:
    """Build the environment of a process: allowed variables of the server's environment, the server URL and the token.

    `QD_*` variables are never inherited, even if they are allowed: they hold the server's keys and its database URL.
    """
    inherited = {
        name: server_environment[name] for name in allowed if name in server_environment and not name.startswith("QD_")
    }
    server_variables = {} if server_url is None else dict.fromkeys(SERVER_VARIABLES, server_url)
    return {**inherited, **server_variables, TOKEN_VARIABLE: token}


def output_tail(output: bytes) -> str:
    """Return the end of the output, which usually says why the process failed."""
    text = output.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}").strip()
    return text if len(text) <= TAIL_MAX else f"…{text[-TAIL_MAX:]}"
