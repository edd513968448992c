"""What becomes of what is said of an agent, and who may say it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.command import SERVER
from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import Agent, Health, Register, RegisterBody, Said, State, Terminate, Verb
from quarterdeck.domain.agents.rules import errors
from quarterdeck.domain.agents.rules.states import TOLD, Moved

_names = msgspec.json.Decoder(list[str]).decode
RESERVED = re.compile(r"fleet-[0-9]+-[0-9]+")
"""Ids of members of fleets: whoever had one before its member comes could speak for it."""


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who says it, and what is known of what they may say."""

    caller: Caller | None
    role: Role | None
    """None: the server itself."""
    launchers: Collection[str]


def said_of(body: RegisterBody) -> Said:
    """A body as it is stored."""
    said: dict[str, object] = {}
    for name in Said.__struct_fields__:
        value = getattr(body, name)
        if value is UNSET:
            continue
        if name == "capabilities":
            value = _text([*dict.fromkeys(value)])
        elif name == "labels":
            value = _text(dict(sorted(value.items())))
        said[name] = int(value) if isinstance(value, bool) else value
    return Said(**said)  # type: ignore[arg-type]  # the body has checked them, under the same names


def register(ask: Register, before: Agent | None, by: Speaker, now: Millis) -> Moved | Agent | Problem:
    """The agent that is made (an `Agent`), or what is changed of the one that is there (a `Moved`). To register is to
    be heard of: whoever registers an agent that was lost, or terminated, has it back."""
    if problem := errors.acting_problem(by.caller, by.role, ask.agent_id):
        return problem
    if by.role is Role.AGENT and (before is None or before.status is State.TERMINATED):
        # A token that names an agent which nobody has registered: what it may do was never said.
        return errors.not_found(ask.agent_id)
    is_new = before is None or before.status is State.TERMINATED
    if is_new and by.caller is not None and RESERVED.fullmatch(ask.agent_id):
        return errors.reserved(ask.agent_id)
    known = _known(ask, before, now)
    if refusal := _refusal(ask.said, known, by):
        return refusal
    after = _heard(_told(ask.said, known), now)
    if ask.is_unheard:
        after = msgspec.structs.replace(after, look_at=None)
    if before is None:
        return after
    changed = tuple(name for name in Said.__struct_fields__ if getattr(after, name) != getattr(before, name))
    if before.status is State.TERMINATED:
        return Moved(before, after, TOLD[Verb.REGISTER], registered_data(after))
    if before.status is State.ERROR:
        told, data = TOLD[Verb.REVIVE], (("heldTasks", before.held),)
        return Moved(before, msgspec.structs.replace(after, updated_at=now), told, data)
    if not changed:
        return Moved(before, after)
    return Moved(before, msgspec.structs.replace(after, updated_at=now), "agent.changed", (("changed", changed),))


def loses_all(before: Agent) -> bool:
    """Whether there is anything that an agent has lost when another process begins to work as it. One that is launched
    has a process for each task."""
    return before.launcher is None and before.status is not State.TERMINATED and before.held > 0


def ending_problem(ask: Terminate, agent: Agent) -> Problem | None:
    """Why it is not ended from outside: of a member the registry's agent alone would end, and the member would go on
    without a voice. Whoever took such an id before these were kept for members is an agent like any other."""
    is_member = RESERVED.fullmatch(agent.id) is not None and agent.created_by == SERVER
    if ask.caller is None or not is_member or agent.status is State.TERMINATED:
        return None
    return errors.is_member(agent.id)


def registered_data(agent: Agent) -> tuple[tuple[str, object], ...]:
    return (
        ("name", agent.name),
        ("model", agent.model),
        ("capabilities", _names(agent.capabilities)),
        ("maxConcurrentTasks", agent.max_concurrent_tasks),
        ("launcher", agent.launcher),
    )


def _refusal(said: Said, known: Agent, by: Speaker) -> Problem | None:
    if said.launcher is not UNSET and said.launcher != known.launcher:
        if by.role not in (None, Role.OWNER, Role.ADMIN):
            return errors.no_launcher_by(by.role)
        if said.launcher is not None and said.launcher not in by.launchers:
            return errors.unknown_launcher(said.launcher, by.launchers)
    if (
        by.role is Role.AGENT
        and said.capabilities is not UNSET
        and not {*_names(said.capabilities)} <= {*_names(known.capabilities)}
    ):
        return errors.raises_itself()
    return None


def _told(said: Said, known: Agent) -> Agent:
    given = {name: value for name in Said.__struct_fields__ if (value := getattr(said, name)) is not UNSET}
    return msgspec.structs.replace(known, **given)


def _known(ask: Register, before: Agent | None, now: Millis) -> Agent:
    """What is said of it already. One that was terminated begins anew: what it could do then is not given to whoever
    takes its name now."""
    if before is None:
        return _new(ask, now)
    if before.status is State.TERMINATED:
        # A moment of its own, even by a clock that stands: by it tokens of the one before are told from its own.
        since = max(now, before.created_at + 1)
        return msgspec.structs.replace(_new(ask, now), held=before.held, created_at=since)
    return before


def _heard(agent: Agent, now: Millis) -> Agent:
    """Alive, and with nothing of what it said before it was gone. What it holds, and whether it drains, stays."""
    gone = agent.status is State.ERROR
    return msgspec.structs.replace(
        agent,
        status=State.IDLE if gone else agent.status,
        status_reason=None if gone else agent.status_reason,
        pulse_status=Health.HEALTHY if gone else agent.pulse_status,
        current_task_id=None if gone else agent.current_task_id,
        last_seen_at=now,
        look_at=now + agent.stale_threshold_seconds * SECOND,
    )


def _new(ask: Register, now: Millis) -> Agent:
    return Agent(
        zone_id=ask.zone_id,
        id=ask.agent_id,
        name=ask.agent_id,
        model=None,
        description=None,
        capabilities="[]",
        max_concurrent_tasks=1,
        heartbeat_interval_seconds=30,
        stale_threshold_seconds=180,
        coordinator_enabled=1,
        launcher=None,
        labels="{}",
        pool=None,
        status=State.IDLE,
        status_reason=None,
        draining=0,
        look_at=None,
        terminated_at=None,
        created_by=ask.actor,
        created_at=now,
        updated_at=now,
        pulse_status=Health.HEALTHY,
        held=0,
        current_task_id=None,
        progress_percent=None,
        current_step=None,
        memory_mb=None,
        cpu_percent=None,
        last_seen_at=now,
        kept_at=0,
    )


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
