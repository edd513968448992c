"""Requests sessions from a gateway over HTTP. The gateway runs them."""

from __future__ import annotations

import logging

from quarterdeck.domain.coordination.background.launchers.model import LauncherDeps, LaunchFailed, LaunchRequest
from quarterdeck.domain.coordination.model import HttpLauncherConfig
from quarterdeck.domain.coordination.rules import launch_payload as rules
from quarterdeck.domain.tasks.model.commands import RecordLaunch
from quarterdeck.domain.tasks.model.rows import FullTask
from quarterdeck.engine.outbound_http import OutboundError, Request

log = logging.getLogger("quarterdeck.launching")


async def start(deps: LauncherDeps, config: HttpLauncherConfig, request: LaunchRequest, full_task: FullTask) -> None:
    """Request a session and record it. From then on, the session itself sends reports and its agent's heartbeats."""
    session_key = await _request_session(deps, config, full_task)
    task = request.task
    record_launch = RecordLaunch(
        zone_id=task.zone_id, id=task.id, attempt_token=request.attempt_token, session_key=session_key
    )
    if await deps.report(record_launch, f"the launch of {task.id}") is None:
        # The attempt has ended in the meantime, so the server will refuse the reports of the session.
        log.info("session %s was started for an ended attempt of task %s", session_key, task.id)


async def _request_session(deps: LauncherDeps, config: HttpLauncherConfig, full_task: FullTask) -> str:
    body = rules.encode_spawn_request(
        full_task, *deps.task_inputs(full_task, decrypted=rules.can_send_secrets(config.url))
    )
    missing = [name for name in config.headers.values() if name not in deps.environment]
    if missing:
        raise LaunchFailed(f"the environment variable {missing[0]} of the launcher is not set on this server")
    headers = [
        ("Content-Type", "application/json"),
        *((header, deps.environment[name]) for header, name in config.headers.items()),
    ]
    url = config.url.rstrip("/") + rules.SPAWN_PATH
    try:
        response = await deps.http_client.send(
            Request("POST", url, headers, body, requester="launching"), config.timeout_seconds
        )
    except OutboundError as error:
        raise LaunchFailed(f"the request to the gateway failed: {error}") from None
    if not 200 <= response.status < 300:
        raise LaunchFailed(f"the gateway responded with status {response.status}")
    session_key = rules.parse_session_key(response.body)
    if session_key is None:
        raise LaunchFailed("the gateway's response has no valid session key")
    return session_key
