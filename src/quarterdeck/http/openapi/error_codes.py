"""What each refusal code means, and the kind of problem it belongs to.

Rooms own their codes; this page is what the documentation says about them. A test holds it against the source: a code
that is raised is listed here, under the kind it is raised with, and a code that nobody raises is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quarterdeck.core.errors import (
    Conflict,
    Forbidden,
    Frozen,
    Internal,
    Invalid,
    KeyConflict,
    LimitReached,
    MethodNotAllowed,
    NotFound,
    OutcomeUnknown,
    Problem,
    StateConflict,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from quarterdeck.domain.sessions.rules import BOUNDS


class ErrorCode(NamedTuple):
    problem_type: type[Problem]
    meaning: str


COMMON_CODES: Mapping[str, ErrorCode] = {
    "invalid_http": ErrorCode(Invalid, "The bytes are not a well-formed HTTP/1.1 request; the connection is closed."),
    "invalid_body": ErrorCode(Invalid, "The body is not the JSON this route takes; `field` names what is wrong."),
    "invalid_path": ErrorCode(
        Invalid, "A segment of the path is not of the form of what it names; `field` says which."
    ),
    "invalid_query": ErrorCode(Invalid, "A parameter of the query is wrong; `field` names it."),
    "invalid_characters": ErrorCode(Invalid, "Text holds U+0000 or a lone surrogate."),
    "invalid_number": ErrorCode(Invalid, "An integer needs more than 64 bits."),
    "invalid_value": ErrorCode(Invalid, "A value is well-formed, but cannot be stored."),
    "reserved_key": ErrorCode(
        Invalid, "`$sealed` cannot be sent, and `$secret` stands alone around a string; `field` names where."
    ),
    "too_many_secrets": ErrorCode(Invalid, "One JSON value holds more than 256 secrets."),
    "missing_token": ErrorCode(Unauthenticated, "The request has neither a bearer token nor an API key."),
    "invalid_token": ErrorCode(
        Unauthenticated,
        "The token or the API key is malformed, expired, revoked, forged, or not for this server; or there are two.",
    ),
    "session_ended": ErrorCode(Unauthenticated, "The session that the token or the API key speaks for has ended."),
    "agent_ended": ErrorCode(
        Unauthenticated, "The agent that the token speaks for was terminated, or is another since the token was made."
    ),
    "missing_scope": ErrorCode(Forbidden, "The token lacks the scope this route needs."),
    "zone_mismatch": ErrorCode(Forbidden, "The token is for another zone."),
    "invalid_workspace_id": ErrorCode(Invalid, "X-Workspace-ID is not of the form of an id."),
    "workspace_not_found": ErrorCode(
        NotFound, "X-Workspace-ID names a workspace that the token is not for, or that does not exist."
    ),
    "not_a_member": ErrorCode(Forbidden, "The bearer is no member of the workspace, and its token gives it no role."),
    "forbidden_role": ErrorCode(Forbidden, "The bearer's role in the workspace does not allow this."),
    "route_not_found": ErrorCode(NotFound, "There is nothing at this path."),
    "method_not_allowed": ErrorCode(MethodNotAllowed, "The path exists; the `Allow` header lists its methods."),
    "conflict": ErrorCode(Conflict, "The request contradicts what is stored."),
    "body_too_large": ErrorCode(
        TooLarge, "The body is larger than 256 KiB; or than what the route takes, where that is more."
    ),
    "internal_error": ErrorCode(Internal, "A defect of the server. Its log has the details, under the request's id."),
    "queue_full": ErrorCode(Unavailable, "Too many requests of this kind are waiting. Nothing was done; try again."),
    "database_unavailable": ErrorCode(Unavailable, "The database is away or too busy. Nothing was done; try again."),
    "issuer_unavailable": ErrorCode(Unavailable, "The token cannot be checked: its issuer's keys cannot be had."),
    "outcome_unknown": ErrorCode(
        OutcomeUnknown, "The database was lost during COMMIT. Repeat with the same Idempotency-Key, or look first."
    ),
}
"""What any route may answer: they are explained once, not at every route."""

ROUTE_CODES: Mapping[str, ErrorCode] = {
    "invalid_last_event_id": ErrorCode(Invalid, "Last-Event-ID is not a position of the log."),
    "too_many_streams": ErrorCode(Unavailable, "As many streams are open as this server may have; try another."),
    "draining": ErrorCode(Unavailable, "The server is shutting down."),
    "invalid_cursor": ErrorCode(Invalid, "The cursor was not given out by this list."),
    "invalid_idempotency_key": ErrorCode(Invalid, "The key is empty, too long, or holds control characters."),
    "idempotency_key_mismatch": ErrorCode(Invalid, "The header and the body give different keys."),
    "idempotency_key_conflict": ErrorCode(KeyConflict, "The key was already used with another body."),
    "zone_not_found": ErrorCode(NotFound, "There is no such zone."),
    "zone_ended": ErrorCode(Conflict, "The zone has ended, and its id is not used again."),
    "zone_is_default": ErrorCode(Conflict, "The zone `default` is always there."),
    "zone_frozen": ErrorCode(Frozen, "An administrator has stopped admission to the zone."),
    "agent_not_found": ErrorCode(NotFound, "There is no such session in this zone, or no such agent."),
    "agent_not_found_or_not_active": ErrorCode(StateConflict, "The session has ended: it cannot be suspended."),
    "agent_not_found_or_not_suspended": ErrorCode(
        StateConflict, "The session has ended or bears no flag of its own; `held_by` names the ancestor that holds it."
    ),
    "agent_required": ErrorCode(Forbidden, "The token is another agent's: an agent acts as itself alone."),
    "agent_terminated": ErrorCode(Conflict, "The agent was terminated; it can be registered again."),
    "agent_id_reserved": ErrorCode(Invalid, "The id is one of those that members of fleets have."),
    "agent_in_fleet": ErrorCode(Conflict, "The agent is a member of a fleet, and is ended by deregistering it there."),
    "agent_draining": ErrorCode(Conflict, "The agent is to end with its last task, and takes no others."),
    "unknown_launcher": ErrorCode(Invalid, "The configuration of the server names no such launcher."),
    "capabilities_not_allowed": ErrorCode(Forbidden, "An agent cannot give itself capabilities."),
    "metadata_too_large": ErrorCode(Invalid, "The metadata of a heartbeat is larger than 8 KiB."),
    "log_full": ErrorCode(LimitReached, "The log of the task has as many lines as it may have."),
    "budget_not_found": ErrorCode(NotFound, "There is no such budget."),
    "too_many_budgets": ErrorCode(LimitReached, "The workspace has as many budgets as it may have."),
    "invocation_not_found": ErrorCode(NotFound, "There is no such invocation in this zone."),
    "idempotency_key_required": ErrorCode(Invalid, "An invocation needs a key, in the body or the header."),
    "agent_session_not_found": ErrorCode(NotFound, "There is no such live session in this zone."),
    "invoker_ownership_required": ErrorCode(Forbidden, "The token may not invoke for this application."),
    "service_ownership_required": ErrorCode(
        Forbidden, "Only the service's application may take and report its invocations."
    ),
    "service_is_pushed": ErrorCode(Conflict, "The invocations of this service are pushed to it, not claimed."),
    "attempt_token_required": ErrorCode(Conflict, "Say which attempt this is about."),
    "stale_attempt": ErrorCode(Conflict, "The token is of an attempt that is over."),
    "task_not_found": ErrorCode(NotFound, "There is no such task in this workspace."),
    "task_exists": ErrorCode(Conflict, "There is a task with this id already."),
    "task_state_conflict": ErrorCode(Conflict, "The task is in no state for this; `taskStatus` says in which."),
    "unknown_dependency": ErrorCode(Invalid, "It would depend on a task that does not exist."),
    "dependency_cycle": ErrorCode(Conflict, "These tasks would wait for each other; `cycle` names them."),
    "dependency_failed": ErrorCode(Conflict, "It would depend on a task that has failed or was canceled."),
    "field_too_large": ErrorCode(TooLarge, "A JSON field is larger than 1 MiB; `field` names it."),
    "answer_too_large": ErrorCode(
        TooLarge, "Of many tasks that were made before: the answer has no room left to show this one."
    ),
    "invocation_not_startable": ErrorCode(StateConflict, "The invocation does not wait, or may not begin yet."),
    "invocation_not_cancelable": ErrorCode(StateConflict, "The invocation has ended."),
    "invocation_not_completable": ErrorCode(StateConflict, "The invocation is not running."),
    "agent_suspended": ErrorCode(Conflict, "The session is suspended."),
    "delegation_not_found": ErrorCode(NotFound, "There is no such delegation in this zone."),
    "delegation_endpoint_not_found": ErrorCode(NotFound, "The source or the target is absent or has ended."),
    "delegation_exceeds_authority": ErrorCode(
        Forbidden, "More is lent than what it is derived from covers; `exceeds` names every part."
    ),
    "delegation_cycle_denied": ErrorCode(Conflict, "Active delegations already lead from the target to the source."),
    "self_delegation_denied": ErrorCode(Invalid, "Source and target are the same session."),
    "delegation_expired": ErrorCode(Invalid, "The time it is to last until has passed."),
    "invalid_constraints": ErrorCode(Invalid, "A constraint is not what it must be; `field` names it."),
    "invalid_parent_edge": ErrorCode(Invalid, "The parent does not lead to the source."),
    "invalid_issuer_application": ErrorCode(Invalid, "The source belongs to another application."),
    "invalid_receiver_application": ErrorCode(Invalid, "The target belongs to another application."),
    "agent_service_not_found": ErrorCode(NotFound, "There is no such service in this zone."),
    "application_mismatch": ErrorCode(Invalid, "The session belongs to another application."),
    "invalid_endpoint_url": ErrorCode(
        Invalid, "It is no http(s) URL of plain form; or it is to be pushed to, and is no public host."
    ),
    "invalid_webhook_url": ErrorCode(
        Invalid, "It is no https URL of plain form, or its host is no public one; `detail` says which."
    ),
    "invalid_webhook_type": ErrorCode(Invalid, "No event is of this type."),
    "webhook_not_found": ErrorCode(NotFound, "There is no such webhook in this workspace."),
    "delivery_not_found": ErrorCode(NotFound, "The webhook has no such delivery."),
    "webhook_disabled": ErrorCode(Conflict, "Nothing is sent to a disabled webhook; `reason` says why it is."),
    "webhook_limit_exceeded": ErrorCode(LimitReached, "The workspace has as many webhooks as one may have."),
    "sink_not_found": ErrorCode(NotFound, "No sink has this name."),
    "redis_not_configured": ErrorCode(Conflict, "The server was not told of a Redis (REDIS_URL)."),
    "redis_away": ErrorCode(Unavailable, "Redis cannot be reached, or takes nothing just now."),
    "secret_key_not_found": ErrorCode(NotFound, "No server needs a key of this name."),
    "secret_key_seals": ErrorCode(Conflict, "The key is the one that this server seals with."),
    "member_not_found": ErrorCode(NotFound, "The workspace has no such member."),
    "last_owner": ErrorCode(Conflict, "The workspace would be left with members and without an OWNER."),
    "too_many_members": ErrorCode(LimitReached, "The workspace has as many members as one may have."),
    "fleet_not_found": ErrorCode(NotFound, "There is no such fleet in this workspace."),
    "fleet_full": ErrorCode(LimitReached, "The fleet has as many members as one may have."),
    "fleet_deleted": ErrorCode(Conflict, "The fleet is deleted, and that is final."),
    "fleet_member_not_found": ErrorCode(NotFound, "The fleet has no such member, or it has left."),
    "destination_not_found": ErrorCode(NotFound, "The fleet has nobody of this id to send to."),
    "message_not_found": ErrorCode(NotFound, "There is no such message in this fleet."),
    "broadcast_too_large": ErrorCode(Invalid, "A broadcast's text, as often as it has recipients, is too much."),
    "message_state_conflict": ErrorCode(Conflict, "The message was acknowledged or canceled before."),
    "not_the_recipient": ErrorCode(Forbidden, "Only its recipient acknowledges a message."),
    "not_the_sender": ErrorCode(Forbidden, "Only its sender cancels a message."),
    "not_oneself": ErrorCode(Forbidden, "The token is a member's own, and acts as that member alone."),
    "administrator_protected": ErrorCode(
        Conflict, "The administrator of a fleet stays, directs nobody, and receives nothing."
    ),
    "director_protected": ErrorCode(Conflict, "The root director of a fleet leaves with the fleet alone."),
    "nested_teams": ErrorCode(Conflict, "Members with panes are made by the root director alone."),
    "member_placed": ErrorCode(Conflict, "The member has a pane already."),
    "no_placement": ErrorCode(Conflict, "The member has no pane, and is not watched over."),
    "no_panes_here": ErrorCode(Conflict, "This server has no panes: it cannot make, read or close one."),
    "monitor_running": ErrorCode(Conflict, "Another process watches over the fleet."),
    "not_the_monitor": ErrorCode(Conflict, "This process does not watch over the fleet any more."),
    "local_socket_only": ErrorCode(Forbidden, "Panes are reached over the unix socket of the server only."),
    "unknown_pane": ErrorCode(Invalid, "There is no such pane of this user on the host of the server."),
    "unknown_coding_agent": ErrorCode(Invalid, "The configuration of the server names no such coding agent."),
    "pane_not_made": ErrorCode(Conflict, "The pane of a member could not be made, and nobody was registered."),
    "pane_out_of_reach": ErrorCode(
        Conflict, "The pane of the member is elsewhere, gone, or runs something else; `notice` says which."
    ),
    "tmux_failed": ErrorCode(Conflict, "tmux did not do what it was asked for."),
    "member_still_there": ErrorCode(
        Conflict,
        "The agent was told to exit, or could not be, and its pane is still there; `tail` is the end of what it shows.",
    ),
    "member_being_made": ErrorCode(Conflict, "The key stands for a member whose pane is not there yet."),
    "panes_not_closed": ErrorCode(
        Conflict, "A pane of the fleet could not be closed; `agents` says whose. Repeating it goes on with them."
    ),
    "key_not_found": ErrorCode(NotFound, "There is no such API key in this zone."),
    "key_limit_exceeded": ErrorCode(LimitReached, "The zone has as many live API keys as a zone may have."),
    "invalid_scope": ErrorCode(Invalid, "`quarterdeck.admin` crosses zones, and a key or a delegation is for one."),
    "session_sid_required": ErrorCode(Invalid, "Neither the body nor the token gives a sid."),
    "application_ownership_required": ErrorCode(Forbidden, "The token may not act for this application."),
    "parent_not_found": ErrorCode(NotFound, "The parent is absent, not active, or expired."),
    "parent_ownership_required": ErrorCode(Forbidden, "The parent belongs to another application."),
    **{b.code: ErrorCode(LimitReached, f"`{b.name}` is reached: {b.counts}.") for b in BOUNDS},
}
"""What single routes answer: their row of the table names them."""


def find_code(code: str) -> ErrorCode | None:
    return ROUTE_CODES.get(code) or COMMON_CODES.get(code)
