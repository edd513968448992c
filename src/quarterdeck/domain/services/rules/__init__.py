"""Pure rules of services: no I/O, no clock, no randomness.

| module        | decides                                                                              |
|---------------|--------------------------------------------------------------------------------------|
| endpoint_urls | which URLs may be registered, and which of them the server may push to               |
| states        | whether a service is registered, which service a path names, and its view            |
| batch_changes | (holds the services of a batch, as loaded and as changed)                            |
| registration  | the result of a registration: a new service, an existing one, or a reactivated one   |
| update        | the result of an update and of a heartbeat                                           |
| unregister    | what follows for a service when some of its registrations are deleted                |
"""

from quarterdeck.domain.services.rules.batch_changes import BatchChanges, PendingEvent
from quarterdeck.domain.services.rules.endpoint_urls import endpoint_problem, push_problem
from quarterdeck.domain.services.rules.registration import RegistrationBatchInput, RegistrationDecider
from quarterdeck.domain.services.rules.states import (
    ServiceBatchInput,
    is_registered,
    no_services_problem,
    not_found,
    ownership_problem,
    resolve_service,
    view,
)
from quarterdeck.domain.services.rules.unregister import RegistrationRemoval, apply_removal
from quarterdeck.domain.services.rules.update import apply_heartbeat, apply_update, update_from_body, update_service

__all__ = [
    "BatchChanges",
    "PendingEvent",
    "RegistrationBatchInput",
    "RegistrationDecider",
    "RegistrationRemoval",
    "ServiceBatchInput",
    "apply_heartbeat",
    "apply_removal",
    "apply_update",
    "endpoint_problem",
    "is_registered",
    "no_services_problem",
    "not_found",
    "ownership_problem",
    "push_problem",
    "resolve_service",
    "update_from_body",
    "update_service",
    "view",
]
