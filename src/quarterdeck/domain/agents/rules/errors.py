"""What can be refused about agents, each with the sentence its caller is told."""

from __future__ import annotations

from collections.abc import Collection

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated
from quarterdeck.domain.agents.model import METADATA_MAX, State


def agent_not_found(agent_id: str) -> NotFound:
    return NotFound("agent_not_found", f"There is no agent {agent_id!r}.")


def agent_terminated(agent_id: str) -> Conflict:
    return Conflict("agent_terminated", f"The agent {agent_id!r} was terminated.", frees="it is registered again")


def agent_id_reserved(agent_id: str) -> Invalid:
    return Invalid(
        "agent_id_reserved",
        f"The id {agent_id!r} is one of those that members of fleets have: they are registered with their fleet.",
        field="agentId",
    )


def agent_in_fleet(agent_id: str) -> Conflict:
    _, fleet_id, number = agent_id.split("-")
    return Conflict(
        "agent_in_fleet",
        f"The agent {agent_id!r} is a member of fleet {fleet_id}, and leaves the registry with it: `qd member delete "
        f"--fleet-id {fleet_id} --member-id {number}`, or `qd agent deregister {number} --fleet-id {fleet_id}`.",
    )


def agent_draining(agent_id: str) -> Conflict:
    return Conflict("agent_draining", f"The agent {agent_id!r} is to end when its last task has: it takes no others.")


def agent_token_problem(caller: Caller, status: State, registered_at: Millis) -> Unauthenticated | None:
    """Why a token is not heard that names an agent, which stands like this and was registered then. Who is registered
    under the name of one that was terminated is somebody else: what was made for the former is not theirs."""
    if status is State.TERMINATED:
        return Unauthenticated("agent_ended", "The agent this token speaks for was terminated.")
    if caller.agent_since is not None:
        is_same_registration = caller.agent_since == registered_at
    else:
        # Of another's making, or made without a look at the database: all that is known is when.
        is_same_registration = caller.issued_at is None or caller.issued_at >= registered_at
    if is_same_registration:
        return None
    return Unauthenticated("agent_ended", "The agent was registered after this token was made: it is another's.")


def acting_agent_problem(caller: Caller | None, role: Role | None, agent_id: str) -> Forbidden | None:
    """Why one who is an agent may not act as another. A role without an agent to it is no agent's at all."""
    if role is not Role.AGENT or (caller is not None and caller.agent_id == agent_id):
        return None
    return Forbidden("agent_required", f"Only the agent {agent_id!r} itself may do this, or a person.")


def unknown_launcher(name: str, launchers: Collection[str]) -> Invalid:
    """Said only to those who may choose among them."""
    known = sorted(launchers)
    names = f"It names {', '.join(known)}" if known else "It names none"
    return Invalid(
        "unknown_launcher",
        f"The configuration of this server names no launcher {name!r}. {names}: a request can choose one, and define "
        "none.",
        field="launcher",
        launchers=known,
    )


def launcher_forbidden(role: Role | None) -> Forbidden:
    return Forbidden(
        "forbidden_role",
        "What starts an agent's sessions is changed by an OWNER or ADMIN alone.",
        role=str(role or ""),
        power="agents.register",
        allowed=[Role.OWNER.value, Role.ADMIN.value],
    )


def capabilities_not_allowed() -> Forbidden:
    return Forbidden(
        "capabilities_not_allowed",
        "An agent cannot give itself capabilities: by them it is given tasks, and what is secret in them.",
    )


def metadata_too_large() -> Invalid:
    return Invalid(
        "metadata_too_large", f"The metadata of a heartbeat has at most {METADATA_MAX} bytes of JSON.", field="metadata"
    )
