"""Sessions that somebody else runs: one request to its gateway, and what it answers."""

from __future__ import annotations

import logging

from quarterdeck.domain.coordination.launchers.model import LaunchFailed, Means, Start
from quarterdeck.domain.coordination.model import HttpLauncher
from quarterdeck.domain.coordination.rules import launch_payload as rules
from quarterdeck.domain.tasks.model.commands import Launched
from quarterdeck.domain.tasks.model.rows import Whole
from quarterdeck.engine.outbound_http import OutwardError, Request

log = logging.getLogger("quarterdeck.launching")


async def start(means: Means, launcher: HttpLauncher, ask: Start, whole: Whole) -> None:
    """Returns when the session has been written down. From then on it speaks for itself, and beats for its agent."""
    key = await _ask(means, launcher, whole)
    row = ask.task
    launched = Launched(zone_id=row.zone_id, id=row.id, token=ask.token, session_key=key)
    if await means.report(launched, f"the launch of {row.id}") is None:
        # Over before it began: what was started finds its token refused.
        log.info("the session %s was started for an attempt of %s that is over", key, row.id)


async def _ask(means: Means, launcher: HttpLauncher, whole: Whole) -> str:
    body = rules.told(whole, *means.opened(whole, clear=rules.may_see_secrets(launcher.url)))
    missing = [name for name in launcher.headers.values() if name not in means.environment]
    if missing:
        raise LaunchFailed(f"the environment of this server lacks {missing[0]}, which its launcher needs")
    headers = [
        ("Content-Type", "application/json"),
        *((header, means.environment[name]) for header, name in launcher.headers.items()),
    ]
    url = launcher.url.rstrip("/") + rules.SPAWN_PATH
    try:
        answer = await means.outward.ask(
            Request("POST", url, headers, body, asker="launching"), launcher.timeout_seconds
        )
    except OutwardError as error:
        raise LaunchFailed(f"the gateway could not be asked: {error}") from None
    if not 200 <= answer.status < 300:
        raise LaunchFailed(f"the gateway answered {answer.status}")
    key = rules.session_key(answer.body)
    if key is None:
        raise LaunchFailed("the gateway named no session in its answer")
    return key
