"""What can be done with services, each verb over a batch: load under locks, decide by `rules`, write.

| module      | verbs                                                                                     |
|-------------|-------------------------------------------------------------------------------------------|
| loading     | what every verb but one reads first, in one round trip                                       |
| registering | register                                                                                     |
| changing    | change, heartbeat                                                                            |
| leaving     | unregister, and what the end of a session or of a zone means for services                     |
| forgetting  | the retention of what was unregistered long ago                                               |
| looking     | show, list; and the statement and decoder by which rooms above load services                  |
| writing     | rows and events of what was decided                                                          |
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
