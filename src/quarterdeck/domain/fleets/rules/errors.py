"""Constructors of the errors of fleets. Agents read the texts, in which `task` means a message (`task_id`)."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.errors import Conflict, Forbidden, Invalid, LimitReached, NotFound, Problem
from quarterdeck.domain.fleets.model.rows import (
    BROADCAST_BYTES_MAX,
    MEMBERS_MAX,
    Fleet,
    Member,
    MessageState,
    NoticeFailure,
    Placement,
)


def fleet_not_found(fleet_id: int) -> NotFound:
    return NotFound("fleet_not_found", f"fleet {fleet_id} not found.")


def fleet_deleted(fleet_id: int) -> Conflict:
    return Conflict("fleet_deleted", f"fleet {fleet_id} is deleted")


def member_not_found(agent_id: int, fleet_id: int) -> NotFound:
    return NotFound("fleet_member_not_found", f"agent {agent_id} is not a member of fleet {fleet_id}.")


def inactive_member_problem(fleet: Fleet, member: Member) -> Problem | None:
    """The error if a member can no longer act, or None. Its messages stay readable."""
    if fleet.deleted_at is not None:
        return fleet_deleted(fleet.fleet_id)
    return None if member.is_active else member_not_found(member.agent_id, fleet.fleet_id)


def fleet_full(fleet_id: int, used: int) -> LimitReached:
    return LimitReached(
        "fleet_full",
        f"Fleet {fleet_id} is full: it has {used} of at most {MEMBERS_MAX} members.",
        bound="max_fleet_members",
        limit=MEMBERS_MAX,
        used=used,
        frees="a member is deregistered",
    )


def destination_not_found(agent_id: int) -> NotFound:
    return NotFound("destination_not_found", f"Destination agent not found: {agent_id}")


def broadcast_too_large(size_bytes: int, recipient_count: int) -> Invalid:
    return Invalid(
        "broadcast_too_large",
        f"The broadcast is too large: {size_bytes} bytes for each of {recipient_count} recipients. "
        f"At most {BROADCAST_BYTES_MAX} bytes in total are allowed.",
        field="text",
    )


def message_not_found(message_id: int) -> NotFound:
    return NotFound("message_not_found", f"Task {message_id} not found")


def not_the_recipient() -> Forbidden:
    return Forbidden("not_the_recipient", "Only the recipient can ACK a task")


def not_the_sender() -> Forbidden:
    return Forbidden("not_the_sender", "Only the sender can cancel a task")


def acting_agent_forbidden(agent_id: int) -> Forbidden:
    return Forbidden("not_oneself", f"This token cannot act as agent {agent_id}")


def cannot_acknowledge(state: MessageState) -> Conflict:
    return Conflict("message_state_conflict", f"Cannot ACK task in state {state}")


def cannot_cancel(state: MessageState) -> Conflict:
    return Conflict("message_state_conflict", f"Cannot cancel task in state {state}")


def administrator_not_removable() -> Conflict:
    return Conflict("administrator_protected", "Administrator cannot be deregistered")


def administrator_cannot_direct() -> Conflict:
    return Conflict("administrator_protected", "Administrator cannot be a director")


def administrator_cannot_receive() -> Conflict:
    return Conflict("administrator_protected", "Administrator cannot receive messages")


def director_not_removable() -> Conflict:
    return Conflict("director_protected", "cannot deregister the root Director; use 'qd fleet delete' instead")


def nested_teams(director_id: int, agent_id: int) -> Conflict:
    return Conflict(
        "nested_teams",
        f"nested teams are not supported: members are created by the root Director (agent {director_id}), "
        f"not by agent {agent_id}",
    )


def member_has_pane(agent_id: int) -> Conflict:
    return Conflict("member_placed", f"agent {agent_id} already has a pane")


def no_placement(agent_id: int) -> Conflict:
    return Conflict("no_placement", f"agent {agent_id} has no pane")


def monitor_running(fleet_id: int) -> Conflict:
    return Conflict("monitor_running", f"monitor already running for fleet {fleet_id}")


def not_the_monitor(fleet_id: int) -> Conflict:
    return Conflict("not_the_monitor", f"this process no longer monitors fleet {fleet_id}")


def unknown_coding_agent(name: str, available: list[str]) -> Invalid:
    return Invalid(
        "unknown_coding_agent",
        f"Unknown coding agent {name!r}. Configured: {', '.join(available)}.",
        field="coding_agent",
    )


def coding_agent_not_configured(placement: Placement) -> Invalid:
    return Invalid(
        "unknown_coding_agent",
        f"agent {placement.agent_id} runs {placement.coding_agent!r}, which is no longer configured, so its exit "
        "command is unknown. Use --force to kill its pane.",
        field="coding_agent",
    )


# -- panes -------------------------------------------------------------------------------------------------------

_UNREACHABLE_TEXTS = {
    NoticeFailure.NO_PANE: "has no pane",
    NoticeFailure.OTHER_HOST: "runs on another host or as another user",
    NoticeFailure.OTHER_TMUX: "ran in a tmux server that has ended",
    NoticeFailure.PANE_GONE: "no longer has a pane: it was closed",
    NoticeFailure.NOT_THE_AGENT: "is not in the foreground of its pane: another program might execute the text",
    NoticeFailure.FAILED: "cannot be reached",
}


def scope_missing(scope: str) -> Forbidden:
    return Forbidden("missing_scope", f"The token lacks the scope {scope}.", scope=scope)


def local_socket_required() -> Forbidden:
    return Forbidden(
        "local_socket_only", "Panes are accessible only over the server's Unix socket. Run the command on its host."
    )


def director_id_missing() -> Invalid:
    return Invalid(
        "invalid_body", "director_id is missing. It is required for a member with a pane.", field="director_id"
    )


def unknown_pane(pane_id: str) -> Invalid:
    return Invalid("unknown_pane", f"This user has no pane {pane_id} on this host.", field="pane")


def pane_not_created(reason: str) -> Conflict:
    return Conflict("pane_not_made", f"The pane could not be created, and no member was registered: {reason}")


def pane_unreachable(agent_id: int, failure: NoticeFailure) -> Conflict:
    return Conflict("pane_out_of_reach", f"agent {agent_id} {_UNREACHABLE_TEXTS[failure]}", notice=str(failure))


def tmux_failed(reason: str) -> Conflict:
    return Conflict("tmux_failed", f"tmux failed: {reason}")


def member_being_created(agent_id: int) -> Conflict:
    return Conflict(
        "member_being_made",
        f"agent {agent_id} is being created with this idempotency key and has no pane yet. If that request was "
        f"interrupted, run 'qd member delete --member-id {agent_id}'.",
    )


def panes_not_closed(problems: Mapping[int, Problem]) -> Conflict:
    """`problems`: the errors of the panes that were not closed, by agent id."""
    first_id = min(problems)
    others = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return Conflict(
        "panes_not_closed",
        f"The pane of agent {first_id}{others} was not closed: {problems[first_id].detail}",
        agents=sorted(problems),
        frees="repeat 'qd fleet delete', or use --keep-panes",
    )


def agent_not_in_foreground(placement: Placement, tail: str) -> Conflict:
    return Conflict(
        "member_still_there",
        f"agent {placement.agent_id} may still be running in pane {placement.tmux_pane_id}, but another program is in "
        "the foreground, so the exit command was not typed; the member stays registered",
        pane_id=placement.tmux_pane_id,
        tail=tail,
        frees="qd member delete --force",
    )


def member_still_running(placement: Placement, waited_seconds: float, tail: str) -> Conflict:
    return Conflict(
        "member_still_there",
        f"agent {placement.agent_id} received the exit command, but its pane {placement.tmux_pane_id} is still open "
        f"after {waited_seconds:g} s; the member stays registered",
        pane_id=placement.tmux_pane_id,
        tail=tail,
        frees="qd member delete --force",
    )
