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
    Moved,
    NotFound,
    OutcomeUnknown,
    Problem,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from quarterdeck.domain.sessions.rules import BOUNDS


class Meaning(NamedTuple):
    kind: type[Problem]
    says: str


COMMON: Mapping[str, Meaning] = {
    "invalid_http": Meaning(Invalid, "The bytes are not a well-formed HTTP/1.1 request; the connection is closed."),
    "invalid_body": Meaning(Invalid, "The body is not the JSON this route takes; `field` names what is wrong."),
    "invalid_path": Meaning(Invalid, "A segment of the path is not of the form of what it names; `field` says which."),
    "invalid_query": Meaning(Invalid, "A parameter of the query is wrong; `field` names it."),
    "invalid_characters": Meaning(Invalid, "Text holds U+0000 or a lone surrogate."),
    "invalid_number": Meaning(Invalid, "An integer needs more than 64 bits."),
    "invalid_value": Meaning(Invalid, "A value is well-formed, but cannot be stored."),
    "reserved_key": Meaning(
        Invalid, "`$sealed` cannot be sent, and `$secret` stands alone around a string; `field` names where."
    ),
    "too_many_secrets": Meaning(Invalid, "One JSON value holds more than 256 secrets."),
    "missing_token": Meaning(Unauthenticated, "The request has neither a bearer token nor an API key."),
    "invalid_token": Meaning(
        Unauthenticated,
        "The token or the API key is malformed, expired, revoked, forged, or not for this server; or there are two.",
    ),
    "session_ended": Meaning(Unauthenticated, "The session that the token or the API key speaks for has ended."),
    "agent_ended": Meaning(
        Unauthenticated, "The agent that the token speaks for was terminated, or is another since the token was made."
    ),
    "missing_scope": Meaning(Forbidden, "The token lacks the scope this route needs."),
    "zone_mismatch": Meaning(Forbidden, "The token is for another zone."),
    "invalid_workspace_id": Meaning(Invalid, "X-Workspace-ID is not of the form of an id."),
    "workspace_not_found": Meaning(
        NotFound, "X-Workspace-ID names a workspace that the token is not for, or that does not exist."
    ),
    "not_a_member": Meaning(Forbidden, "The bearer is no member of the workspace, and its token gives it no role."),
    "forbidden_role": Meaning(Forbidden, "The bearer's role in the workspace does not allow this."),
    "route_not_found": Meaning(NotFound, "There is nothing at this path."),
    "method_not_allowed": Meaning(MethodNotAllowed, "The path exists; the `Allow` header lists its methods."),
    "conflict": Meaning(Conflict, "The request contradicts what is stored."),
    "body_too_large": Meaning(
        TooLarge, "The body is larger than 256 KiB; or than what the route takes, where that is more."
    ),
    "internal_error": Meaning(Internal, "A defect of the server. Its log has the details, under the request's id."),
    "queue_full": Meaning(Unavailable, "Too many requests of this kind are waiting. Nothing was done; try again."),
    "database_unavailable": Meaning(Unavailable, "The database is away or too busy. Nothing was done; try again."),
    "issuer_unavailable": Meaning(Unavailable, "The token cannot be checked: its issuer's keys cannot be had."),
    "outcome_unknown": Meaning(
        OutcomeUnknown, "The database was lost during COMMIT. Repeat with the same Idempotency-Key, or look first."
    ),
}
"""What any route may answer: they are explained once, not at every route."""

OWN: Mapping[str, Meaning] = {
    "invalid_last_event_id": Meaning(Invalid, "Last-Event-ID is not a position of the log."),
    "too_many_streams": Meaning(Unavailable, "As many streams are open as this server may have; try another."),
    "draining": Meaning(Unavailable, "The server is shutting down."),
    "invalid_cursor": Meaning(Invalid, "The cursor was not given out by this list."),
    "invalid_idempotency_key": Meaning(Invalid, "The key is empty, too long, or holds control characters."),
    "idempotency_key_mismatch": Meaning(Invalid, "The header and the body give different keys."),
    "idempotency_key_conflict": Meaning(KeyConflict, "The key was already used with another body."),
    "zone_not_found": Meaning(NotFound, "There is no such zone."),
    "zone_ended": Meaning(Conflict, "The zone has ended, and its id is not used again."),
    "zone_is_default": Meaning(Conflict, "The zone `default` is always there."),
    "zone_frozen": Meaning(Frozen, "An administrator has stopped admission to the zone."),
    "agent_not_found": Meaning(NotFound, "There is no such session in this zone, or no such agent."),
    "agent_not_found_or_not_active": Meaning(Moved, "The session has ended: it cannot be suspended."),
    "agent_not_found_or_not_suspended": Meaning(
        Moved, "The session has ended or bears no flag of its own; `held_by` names the ancestor that holds it."
    ),
    "agent_required": Meaning(Forbidden, "The token is another agent's: an agent acts as itself alone."),
    "agent_terminated": Meaning(Conflict, "The agent was terminated; it can be registered again."),
    "agent_id_reserved": Meaning(Invalid, "The id is one of those that members of fleets have."),
    "agent_in_fleet": Meaning(Conflict, "The agent is a member of a fleet, and is ended by deregistering it there."),
    "agent_draining": Meaning(Conflict, "The agent is to end with its last task, and takes no others."),
    "unknown_launcher": Meaning(Invalid, "The configuration of the server names no such launcher."),
    "capabilities_not_allowed": Meaning(Forbidden, "An agent cannot give itself capabilities."),
    "metadata_too_large": Meaning(Invalid, "The metadata of a heartbeat is larger than 8 KiB."),
    "log_full": Meaning(LimitReached, "The log of the task has as many lines as it may have."),
    "budget_not_found": Meaning(NotFound, "There is no such budget."),
    "too_many_budgets": Meaning(LimitReached, "The workspace has as many budgets as it may have."),
    "invocation_not_found": Meaning(NotFound, "There is no such invocation in this zone."),
    "idempotency_key_required": Meaning(Invalid, "An invocation needs a key, in the body or the header."),
    "agent_session_not_found": Meaning(NotFound, "There is no such live session in this zone."),
    "invoker_ownership_required": Meaning(Forbidden, "The token may not invoke for this application."),
    "service_ownership_required": Meaning(
        Forbidden, "Only the service's application may take and report its invocations."
    ),
    "service_is_pushed": Meaning(Conflict, "The invocations of this service are pushed to it, not claimed."),
    "attempt_token_required": Meaning(Conflict, "Say which attempt this is about."),
    "stale_attempt": Meaning(Conflict, "The token is of an attempt that is over."),
    "task_not_found": Meaning(NotFound, "There is no such task in this workspace."),
    "task_exists": Meaning(Conflict, "There is a task with this id already."),
    "task_state_conflict": Meaning(Conflict, "The task is in no state for this; `taskStatus` says in which."),
    "unknown_dependency": Meaning(Invalid, "It would depend on a task that does not exist."),
    "dependency_cycle": Meaning(Conflict, "These tasks would wait for each other; `cycle` names them."),
    "dependency_failed": Meaning(Conflict, "It would depend on a task that has failed or was canceled."),
    "field_too_large": Meaning(TooLarge, "A JSON field is larger than 1 MiB; `field` names it."),
    "answer_too_large": Meaning(
        TooLarge, "Of many tasks that were made before: the answer has no room left to show this one."
    ),
    "invocation_not_startable": Meaning(Moved, "The invocation does not wait, or may not begin yet."),
    "invocation_not_cancelable": Meaning(Moved, "The invocation has ended."),
    "invocation_not_completable": Meaning(Moved, "The invocation is not running."),
    "agent_suspended": Meaning(Conflict, "The session is suspended."),
    "delegation_not_found": Meaning(NotFound, "There is no such delegation in this zone."),
    "delegation_endpoint_not_found": Meaning(NotFound, "The source or the target is absent or has ended."),
    "delegation_exceeds_authority": Meaning(
        Forbidden, "More is lent than what it is derived from covers; `exceeds` names every part."
    ),
    "delegation_cycle_denied": Meaning(Conflict, "Active delegations already lead from the target to the source."),
    "self_delegation_denied": Meaning(Invalid, "Source and target are the same session."),
    "delegation_expired": Meaning(Invalid, "The time it is to last until has passed."),
    "invalid_constraints": Meaning(Invalid, "A constraint is not what it must be; `field` names it."),
    "invalid_parent_edge": Meaning(Invalid, "The parent does not lead to the source."),
    "invalid_issuer_application": Meaning(Invalid, "The source belongs to another application."),
    "invalid_receiver_application": Meaning(Invalid, "The target belongs to another application."),
    "agent_service_not_found": Meaning(NotFound, "There is no such service in this zone."),
    "application_mismatch": Meaning(Invalid, "The session belongs to another application."),
    "invalid_endpoint_url": Meaning(
        Invalid, "It is no http(s) URL of plain form; or it is to be pushed to, and is no public host."
    ),
    "invalid_webhook_url": Meaning(
        Invalid, "It is no https URL of plain form, or its host is no public one; `detail` says which."
    ),
    "invalid_webhook_type": Meaning(Invalid, "No event is of this type."),
    "webhook_not_found": Meaning(NotFound, "There is no such webhook in this workspace."),
    "delivery_not_found": Meaning(NotFound, "The webhook has no such delivery."),
    "webhook_disabled": Meaning(Conflict, "Nothing is sent to a disabled webhook; `reason` says why it is."),
    "webhook_limit_exceeded": Meaning(LimitReached, "The workspace has as many webhooks as one may have."),
    "sink_not_found": Meaning(NotFound, "No sink has this name."),
    "redis_not_configured": Meaning(Conflict, "The server was not told of a Redis (REDIS_URL)."),
    "redis_away": Meaning(Unavailable, "Redis cannot be reached, or takes nothing just now."),
    "secret_key_not_found": Meaning(NotFound, "No server needs a key of this name."),
    "secret_key_seals": Meaning(Conflict, "The key is the one that this server seals with."),
    "member_not_found": Meaning(NotFound, "The workspace has no such member."),
    "last_owner": Meaning(Conflict, "The workspace would be left with members and without an OWNER."),
    "too_many_members": Meaning(LimitReached, "The workspace has as many members as one may have."),
    "fleet_not_found": Meaning(NotFound, "There is no such fleet in this workspace."),
    "fleet_full": Meaning(LimitReached, "The fleet has as many members as one may have."),
    "fleet_deleted": Meaning(Conflict, "The fleet is deleted, and that is final."),
    "fleet_member_not_found": Meaning(NotFound, "The fleet has no such member, or it has left."),
    "destination_not_found": Meaning(NotFound, "The fleet has nobody of this id to send to."),
    "message_not_found": Meaning(NotFound, "There is no such message in this fleet."),
    "broadcast_too_large": Meaning(Invalid, "A broadcast's text, as often as it has recipients, is too much."),
    "message_state_conflict": Meaning(Conflict, "The message was acknowledged or canceled before."),
    "not_the_recipient": Meaning(Forbidden, "Only its recipient acknowledges a message."),
    "not_the_sender": Meaning(Forbidden, "Only its sender cancels a message."),
    "not_oneself": Meaning(Forbidden, "The token is a member's own, and acts as that member alone."),
    "administrator_protected": Meaning(
        Conflict, "The administrator of a fleet stays, directs nobody, and receives nothing."
    ),
    "director_protected": Meaning(Conflict, "The root director of a fleet leaves with the fleet alone."),
    "nested_teams": Meaning(Conflict, "Members with panes are made by the root director alone."),
    "member_placed": Meaning(Conflict, "The member has a pane already."),
    "no_placement": Meaning(Conflict, "The member has no pane, and is not watched over."),
    "no_panes_here": Meaning(Conflict, "This server has no panes: it cannot make, read or close one."),
    "monitor_running": Meaning(Conflict, "Another process watches over the fleet."),
    "not_the_monitor": Meaning(Conflict, "This process does not watch over the fleet any more."),
    "local_socket_only": Meaning(Forbidden, "Panes are reached over the unix socket of the server only."),
    "unknown_pane": Meaning(Invalid, "There is no such pane of this user on the host of the server."),
    "unknown_coding_agent": Meaning(Invalid, "The configuration of the server names no such coding agent."),
    "pane_not_made": Meaning(Conflict, "The pane of a member could not be made, and nobody was registered."),
    "pane_out_of_reach": Meaning(
        Conflict, "The pane of the member is elsewhere, gone, or runs something else; `notice` says which."
    ),
    "tmux_failed": Meaning(Conflict, "tmux did not do what it was asked for."),
    "member_still_there": Meaning(
        Conflict,
        "The agent was told to exit, or could not be, and its pane is still there; `tail` is the end of what it shows.",
    ),
    "member_being_made": Meaning(Conflict, "The key stands for a member whose pane is not there yet."),
    "panes_not_closed": Meaning(
        Conflict, "A pane of the fleet could not be closed; `agents` says whose. Repeating it goes on with them."
    ),
    "key_not_found": Meaning(NotFound, "There is no such API key in this zone."),
    "key_limit_exceeded": Meaning(LimitReached, "The zone has as many live API keys as a zone may have."),
    "invalid_scope": Meaning(Invalid, "`quarterdeck.admin` crosses zones, and a key or a delegation is for one."),
    "session_sid_required": Meaning(Invalid, "Neither the body nor the token gives a sid."),
    "application_ownership_required": Meaning(Forbidden, "The token may not act for this application."),
    "parent_not_found": Meaning(NotFound, "The parent is absent, not active, or expired."),
    "parent_ownership_required": Meaning(Forbidden, "The parent belongs to another application."),
    **{b.code: Meaning(LimitReached, f"`{b.name}` is reached: {b.counts}.") for b in BOUNDS},
}
"""What single routes answer: their row of the table names them."""


def meaning(code: str) -> Meaning | None:
    return OWN.get(code) or COMMON.get(code)
