"""The meaning and the problem type of each error code, for the documentation.

Components raise the codes. A test compares this list with the source: every code that is raised is listed here with its
problem type, and no other codes are.
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
    "invalid_http": ErrorCode(Invalid, "The bytes are not a well-formed HTTP/1.1 request. The connection is closed."),
    "invalid_body": ErrorCode(Invalid, "The body is not valid JSON for this route. `field` names the invalid field."),
    "invalid_path": ErrorCode(Invalid, "A path parameter is malformed. `field` names it."),
    "invalid_query": ErrorCode(Invalid, "A query parameter is not valid. `field` names it."),
    "invalid_characters": ErrorCode(Invalid, "A string contains U+0000 or a lone surrogate."),
    "invalid_number": ErrorCode(Invalid, "An integer does not fit into 64 bits."),
    "invalid_value": ErrorCode(
        Invalid, "The database rejected a value: a number is out of range or a string is not valid."
    ),
    "reserved_key": ErrorCode(
        Invalid,
        "`$sealed` is reserved, and `$secret` must be the only key of its object, with a string value. `field` is "
        "the path of the object.",
    ),
    "too_many_secrets": ErrorCode(Invalid, "One JSON value contains more than 256 secrets."),
    "missing_token": ErrorCode(Unauthenticated, "The request has neither a bearer token nor an API key."),
    "invalid_token": ErrorCode(
        Unauthenticated,
        "The token or the API key is malformed, expired, revoked, forged, or not for this server. Or the request has "
        "two credentials.",
    ),
    "session_ended": ErrorCode(Unauthenticated, "The session that the token or the API key acts for has ended."),
    "agent_ended": ErrorCode(
        Unauthenticated,
        "The agent that the token acts for was terminated, or was registered again after the token was issued.",
    ),
    "missing_scope": ErrorCode(Forbidden, "The token does not have the scope that this route needs."),
    "zone_mismatch": ErrorCode(Forbidden, "The token is for another zone."),
    "invalid_workspace_id": ErrorCode(Invalid, "X-Workspace-ID is not 1 to 128 letters, digits and `_ . - :`."),
    "workspace_not_found": ErrorCode(
        NotFound, "X-Workspace-ID names a workspace that does not exist or that the token cannot access."
    ),
    "not_a_member": ErrorCode(Forbidden, "The caller is not a member of the workspace, and its token has no role."),
    "forbidden_role": ErrorCode(Forbidden, "The caller's role in the workspace does not allow this."),
    "route_not_found": ErrorCode(NotFound, "No route matches the path."),
    "method_not_allowed": ErrorCode(
        MethodNotAllowed, "The path does not support this method. The `Allow` header lists the methods it supports."
    ),
    "conflict": ErrorCode(Conflict, "The request conflicts with stored data."),
    "body_too_large": ErrorCode(
        TooLarge, "The body is larger than 256 KiB, or than the limit of the route if that is higher."
    ),
    "internal_error": ErrorCode(Internal, "Internal error. Search the server log for the request id."),
    "queue_full": ErrorCode(Unavailable, "Too many requests of this kind are queued. Nothing was changed. Try again."),
    "database_unavailable": ErrorCode(
        Unavailable, "The database is unavailable or too busy. Nothing was changed. Try again."
    ),
    "issuer_unavailable": ErrorCode(
        Unavailable, "The token cannot be checked: the keys of its issuer cannot be fetched. Try again."
    ),
    "outcome_unknown": ErrorCode(
        OutcomeUnknown,
        "The connection to the database was lost during COMMIT, or the server stopped before it could answer. Repeat "
        "with the same Idempotency-Key, or read the current state first.",
    ),
}
"""Codes that any route may return. They are described once, not at every route."""

ROUTE_CODES: Mapping[str, ErrorCode] = {
    "invalid_last_event_id": ErrorCode(Invalid, "Last-Event-ID is not an id that the stream sent."),
    "too_many_streams": ErrorCode(
        Unavailable, "This server has the maximum number of open streams. Try another server, or try again later."
    ),
    "draining": ErrorCode(Unavailable, "The server is shutting down."),
    "invalid_cursor": ErrorCode(Invalid, "The cursor was not returned by this route."),
    "invalid_idempotency_key": ErrorCode(Invalid, "The key is empty, too long, or contains control characters."),
    "idempotency_key_mismatch": ErrorCode(Invalid, "The header and the body have different keys."),
    "idempotency_key_conflict": ErrorCode(KeyConflict, "The key was already used with a different body."),
    "zone_not_found": ErrorCode(NotFound, "The zone does not exist."),
    "zone_ended": ErrorCode(Conflict, "The zone has ended, and its id cannot be used again."),
    "zone_is_default": ErrorCode(Conflict, "The zone `default` cannot be ended."),
    "zone_frozen": ErrorCode(Frozen, "An administrator has stopped admission to the zone."),
    "agent_not_found": ErrorCode(NotFound, "The session or agent does not exist in this zone."),
    "agent_not_found_or_not_active": ErrorCode(StateConflict, "The session has ended and cannot be suspended."),
    "agent_not_found_or_not_suspended": ErrorCode(
        StateConflict,
        "The session has ended, or was not itself suspended. `held_by` names the ancestor that was suspended.",
    ),
    "agent_required": ErrorCode(Forbidden, "The token belongs to another agent. An agent can only act as itself."),
    "agent_terminated": ErrorCode(Conflict, "The agent was terminated. It can be registered again."),
    "agent_id_reserved": ErrorCode(Invalid, "The id has the form that is reserved for members of fleets."),
    "agent_in_fleet": ErrorCode(Conflict, "The agent is a member of a fleet. Deregister it from the fleet instead."),
    "agent_draining": ErrorCode(Conflict, "The agent gets no new tasks and is terminated after its last task."),
    "unknown_launcher": ErrorCode(Invalid, "The server's configuration has no launcher with this name."),
    "capabilities_not_allowed": ErrorCode(Forbidden, "An agent token cannot change the agent's capabilities."),
    "metadata_too_large": ErrorCode(Invalid, "The metadata of a heartbeat is larger than 8 KiB."),
    "log_full": ErrorCode(LimitReached, "The log of the task has reached its maximum number of lines."),
    "budget_not_found": ErrorCode(NotFound, "The budget does not exist."),
    "too_many_budgets": ErrorCode(LimitReached, "The workspace has reached its maximum number of budgets."),
    "invocation_not_found": ErrorCode(NotFound, "The invocation does not exist in this zone."),
    "idempotency_key_required": ErrorCode(
        Invalid, "An invocation needs an idempotency key, in the body or in the header."
    ),
    "agent_session_not_found": ErrorCode(NotFound, "No live session with this id exists in this zone."),
    "invoker_ownership_required": ErrorCode(Forbidden, "The token may not invoke for this application."),
    "service_ownership_required": ErrorCode(
        Forbidden, "Only the service's application may claim its invocations and report on them."
    ),
    "service_is_pushed": ErrorCode(Conflict, "Invocations of this service are pushed to it and cannot be claimed."),
    "attempt_token_required": ErrorCode(Conflict, "The request needs the token of the attempt."),
    "stale_attempt": ErrorCode(Conflict, "The token belongs to an attempt that has ended."),
    "task_not_found": ErrorCode(NotFound, "The task does not exist in this workspace."),
    "task_exists": ErrorCode(Conflict, "A task with this id already exists."),
    "task_state_conflict": ErrorCode(
        Conflict, "The task's state does not allow this. `taskStatus` is its current state."
    ),
    "unknown_dependency": ErrorCode(Invalid, "The task depends on a task that does not exist."),
    "dependency_cycle": ErrorCode(Conflict, "The dependencies would form a cycle. `cycle` lists its tasks."),
    "dependency_failed": ErrorCode(Conflict, "The task depends on a task that has failed or was canceled."),
    "field_too_large": ErrorCode(TooLarge, "A JSON field is larger than 1 MiB. `field` names it."),
    "answer_too_large": ErrorCode(
        TooLarge, "The task exists already, but the bulk response is too large to include it. Get it by its id."
    ),
    "invocation_not_startable": ErrorCode(StateConflict, "The invocation is not pending, or may not start yet."),
    "invocation_not_cancelable": ErrorCode(StateConflict, "The invocation has ended."),
    "invocation_not_completable": ErrorCode(StateConflict, "The invocation is not running."),
    "agent_suspended": ErrorCode(Conflict, "The session is suspended."),
    "delegation_not_found": ErrorCode(NotFound, "The delegation does not exist in this zone."),
    "delegation_endpoint_not_found": ErrorCode(NotFound, "The source or the target does not exist or has ended."),
    "delegation_exceeds_authority": ErrorCode(
        Forbidden, "The delegation exceeds the authority it is derived from. `exceeds` lists every part."
    ),
    "delegation_cycle_denied": ErrorCode(Conflict, "Active delegations already lead from the target to the source."),
    "self_delegation_denied": ErrorCode(Invalid, "Source and target are the same session."),
    "delegation_expired": ErrorCode(Invalid, "The expiry time is in the past."),
    "invalid_constraints": ErrorCode(Invalid, "A constraint is not valid. `field` names it."),
    "invalid_parent_edge": ErrorCode(Invalid, "The parent delegation does not lead to the source."),
    "invalid_issuer_application": ErrorCode(Invalid, "The source belongs to another application."),
    "invalid_receiver_application": ErrorCode(Invalid, "The target belongs to another application."),
    "agent_service_not_found": ErrorCode(NotFound, "The service does not exist in this zone."),
    "application_mismatch": ErrorCode(Invalid, "The session belongs to another application."),
    "invalid_endpoint_url": ErrorCode(
        Invalid, "The URL is not a plain http(s) URL. The URL of a push service must also have a public host."
    ),
    "invalid_webhook_url": ErrorCode(
        Invalid, "The URL is not a plain https URL with a public host. `detail` names the problem."
    ),
    "invalid_webhook_type": ErrorCode(Invalid, "There is no such event type."),
    "webhook_not_found": ErrorCode(NotFound, "The webhook does not exist in this workspace."),
    "delivery_not_found": ErrorCode(NotFound, "The webhook has no such delivery."),
    "webhook_disabled": ErrorCode(Conflict, "The webhook is disabled. `reason` says why."),
    "webhook_limit_exceeded": ErrorCode(LimitReached, "The workspace has reached its maximum number of webhooks."),
    "sink_not_found": ErrorCode(NotFound, "No sink has this name."),
    "redis_not_configured": ErrorCode(Conflict, "The server has no Redis. Set REDIS_URL."),
    "redis_away": ErrorCode(Unavailable, "Redis cannot be reached or does not accept writes."),
    "secret_key_not_found": ErrorCode(NotFound, "The key is not in the list of needed keys."),
    "secret_key_seals": ErrorCode(Conflict, "The server encrypts with this key."),
    "member_not_found": ErrorCode(NotFound, "The workspace has no such member."),
    "last_owner": ErrorCode(Conflict, "The workspace would have members but no OWNER."),
    "too_many_members": ErrorCode(LimitReached, "The workspace has reached its maximum number of members."),
    "fleet_not_found": ErrorCode(NotFound, "The fleet does not exist in this workspace."),
    "fleet_full": ErrorCode(LimitReached, "The fleet has reached its maximum number of members."),
    "fleet_deleted": ErrorCode(Conflict, "The fleet was deleted."),
    "fleet_member_not_found": ErrorCode(NotFound, "The member does not exist in this fleet or has left it."),
    "destination_not_found": ErrorCode(NotFound, "The fleet has no member with this id that can receive messages."),
    "message_not_found": ErrorCode(NotFound, "The message does not exist in this fleet."),
    "broadcast_too_large": ErrorCode(
        Invalid, "The size of the text multiplied by the number of recipients exceeds the limit for a broadcast."
    ),
    "message_state_conflict": ErrorCode(Conflict, "The message was already acknowledged or canceled."),
    "not_the_recipient": ErrorCode(Forbidden, "Only the recipient can acknowledge a message."),
    "not_the_sender": ErrorCode(Forbidden, "Only the sender can cancel a message."),
    "not_oneself": ErrorCode(Forbidden, "The token belongs to another member. A member can only act as itself."),
    "administrator_protected": ErrorCode(
        Conflict,
        "The administrator of a fleet cannot be deregistered, cannot direct members and cannot receive messages.",
    ),
    "director_protected": ErrorCode(
        Conflict, "The root director of a fleet cannot be deregistered. Delete the fleet instead."
    ),
    "nested_teams": ErrorCode(Conflict, "Only the root director can create members with panes."),
    "member_placed": ErrorCode(Conflict, "The member already has a pane."),
    "no_placement": ErrorCode(Conflict, "The member has no pane and is not monitored."),
    "no_panes_here": ErrorCode(Conflict, "This server has no tmux panes: it cannot create, read or close one."),
    "monitor_running": ErrorCode(Conflict, "Another process is the monitor of the fleet."),
    "not_the_monitor": ErrorCode(Conflict, "This process is no longer the monitor of the fleet."),
    "local_socket_only": ErrorCode(Forbidden, "Panes can only be used over the Unix socket of the server."),
    "unknown_pane": ErrorCode(Invalid, "This user has no such pane on the server's host."),
    "unknown_coding_agent": ErrorCode(Invalid, "The server's configuration has no coding agent with this name."),
    "pane_not_made": ErrorCode(Conflict, "The pane could not be created. No member was registered."),
    "pane_out_of_reach": ErrorCode(
        Conflict, "The member's pane is on another host, is gone, or is running something else. `notice` says which."
    ),
    "tmux_failed": ErrorCode(Conflict, "A tmux command failed."),
    "member_still_there": ErrorCode(
        Conflict, "The agent did not exit, and its pane still exists. `tail` is the end of what the pane shows."
    ),
    "member_being_made": ErrorCode(
        Conflict, "The idempotency key belongs to a member whose pane is still being created."
    ),
    "panes_not_closed": ErrorCode(
        Conflict,
        "Panes of the fleet could not be closed. `agents` lists their members. Repeat the request to continue.",
    ),
    "key_not_found": ErrorCode(NotFound, "The API key does not exist in this zone."),
    "key_limit_exceeded": ErrorCode(LimitReached, "The zone has reached its maximum number of live API keys."),
    "invalid_scope": ErrorCode(
        Invalid, "`quarterdeck.admin` is valid in all zones, so a key or a delegation cannot have it."
    ),
    "session_sid_required": ErrorCode(Invalid, "Neither the body nor the token has a sid."),
    "application_ownership_required": ErrorCode(Forbidden, "The token may not act for this application."),
    "parent_not_found": ErrorCode(NotFound, "The parent does not exist, is not active, or has expired."),
    "parent_ownership_required": ErrorCode(Forbidden, "The parent belongs to another application."),
    **{b.code: ErrorCode(LimitReached, f"Quota `{b.name}` is reached: {b.unit}.") for b in BOUNDS},
}
"""Codes that only some routes return. Each route lists its own."""


def find_code(code: str) -> ErrorCode | None:
    return ROUTE_CODES.get(code) or COMMON_CODES.get(code)
