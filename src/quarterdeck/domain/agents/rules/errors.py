"""Errors of agents. Codes and members are public; clients match on them."""

from __future__ import annotations

from collections.abc import Collection

from quarterdeck.core.caller import Caller, Role
from quarterdeck.core.errors import Conflict, Forbidden, Invalid, NotFound
from quarterdeck.domain.agents.model import METADATA_BYTES_MAX


def agent_not_found(agent_id: str) -> NotFound:
    return NotFound("agent_not_found", f"Agent {agent_id!r} does not exist in this workspace.")


def agent_terminated(agent_id: str) -> Conflict:
    return Conflict("agent_terminated", f"Agent {agent_id!r} was terminated.", frees="it is registered again")


def agent_id_reserved(agent_id: str) -> Invalid:
    return Invalid(
        "agent_id_reserved",
        f"The id {agent_id!r} is reserved for members of fleets. Choose another id.",
        field="agentId",
    )


def agent_in_fleet(agent_id: str) -> Conflict:
    _, fleet_id, number = agent_id.split("-")
    return Conflict(
        "agent_in_fleet",
        f"Agent {agent_id!r} is a member of fleet {fleet_id}. Use `qd member delete --fleet-id {fleet_id} --member-id "
        f"{number}` or `qd agent deregister {number} --fleet-id {fleet_id}`.",
    )


def agent_draining(agent_id: str) -> Conflict:
    return Conflict(
        "agent_draining", f"Agent {agent_id!r} is draining: it gets no new tasks and is terminated after its last one."
    )


def acting_agent_problem(caller: Caller | None, role: Role | None, agent_id: str) -> Forbidden | None:
    """Return an error if a caller with role AGENT may not act for this agent. Other roles may act for any agent.

    A token with role AGENT but without an agent id acts for no agent.
    """
    if role is not Role.AGENT or (caller is not None and caller.agent_id == agent_id):
        return None
    return Forbidden(
        "agent_required",
        f"This token cannot act for agent {agent_id!r}. Use a token of that agent, or one with another role.",
    )


def unknown_launcher(name: str, launchers: Collection[str]) -> Invalid:
    """The error lists the configured launchers, so return it only to callers who may set one."""
    configured = sorted(launchers)
    return Invalid(
        "unknown_launcher",
        f"Launcher {name!r} is not in the server's configuration. Configured: {', '.join(configured) or 'none'}.",
        field="launcher",
        launchers=configured,
    )


def launcher_forbidden(role: Role | None) -> Forbidden:
    return Forbidden(
        "forbidden_role",
        "Only an OWNER or ADMIN may change the launcher of an agent.",
        role=str(role or ""),
        power="agents.register",
        allowed=[Role.OWNER.value, Role.ADMIN.value],
    )


def capabilities_not_allowed() -> Forbidden:
    return Forbidden(
        "capabilities_not_allowed",
        "A token of an agent cannot add capabilities to the agent. Use a token with role OWNER, ADMIN or MEMBER.",
    )


def metadata_too_large() -> Invalid:
    return Invalid(
        "metadata_too_large",
        f"The `metadata` of a heartbeat is too large. The limit is {METADATA_BYTES_MAX} bytes of JSON.",
        field="metadata",
    )
