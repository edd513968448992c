"""Operations of services.

A write takes a batch of commands, loads their rows under the zones' locks, decides with `rules` and writes the result.

| module     | what it does                                                                          |
|------------|---------------------------------------------------------------------------------------|
| load       | loads the batch for `show`, `unregister`, updates and heartbeats                      |
| register   | registers services                                                                    |
| update     | updates services and records their heartbeats                                         |
| unregister | unregisters services, by request and when a session or zone ends                      |
| retention  | deletes services that were unregistered long ago                                      |
| reads      | shows and lists services; the statement and decoder for other components              |
| persist    | writes the rows and events that were decided                                          |
"""

from quarterdeck.domain.services.operations.reads import decode_registered, list_services, load_statement, show
from quarterdeck.domain.services.operations.register import Registrar
from quarterdeck.domain.services.operations.retention import delete_past_retention
from quarterdeck.domain.services.operations.unregister import on_session_or_zone_ended, unregister
from quarterdeck.domain.services.operations.update import Updater, record_heartbeats

__all__ = [
    "Registrar",
    "Updater",
    "decode_registered",
    "delete_past_retention",
    "list_services",
    "load_statement",
    "on_session_or_zone_ended",
    "record_heartbeats",
    "show",
    "unregister",
]
