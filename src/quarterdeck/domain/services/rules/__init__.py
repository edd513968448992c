"""The pure part of services, one file per question.

| module    | what it answers                                                                          |
|-----------|------------------------------------------------------------------------------------------|
| endpoints | which URLs may be registered, and which of them the server may be sent to                    |
| lives     | whether a service is registered, who reaches it by which path, and how it is shown           |
| shelf     | what a batch makes of services: from where it found them to where it leaves them             |
| registry  | what a registration makes: a new service, a known one, or one that was gone                  |
| changes   | what a change and a heartbeat make of a service                                              |
| leaving   | what becomes of a service when some of those who registered it are gone                      |
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
