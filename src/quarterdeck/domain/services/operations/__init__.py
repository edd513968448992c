"""The operations of services, each over a batch: load under the zones' locks, decide with `rules`, persist.

| module     | holds                                                                                 |
|------------|---------------------------------------------------------------------------------------|
| load       | what every operation but `register` reads first, in one round trip                    |
| register   | register                                                                              |
| update     | update and heartbeat                                                                  |
| unregister | unregister, and the listener for ended sessions and zones                             |
| retention  | deletes services that were unregistered long ago                                      |
| reads      | show, list, and the statement and decoder with which other components load services   |
| persist    | writes the rows and events that were decided                                          |
"""

from quarterdeck.domain.services.operations.reads import decode_registered, list_services, load_statement, show
from quarterdeck.domain.services.operations.register import Registrar
from quarterdeck.domain.services.operations.retention import delete_expired
from quarterdeck.domain.services.operations.unregister import on_session_ended, unregister
from quarterdeck.domain.services.operations.update import Updater, record_heartbeats

__all__ = [
    "Registrar",
    "Updater",
    "decode_registered",
    "delete_expired",
    "list_services",
    "load_statement",
    "on_session_ended",
    "record_heartbeats",
    "show",
    "unregister",
]
