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

from quarterdeck.domain.services.operations.changing import Changer, beat
from quarterdeck.domain.services.operations.forgetting import forget
from quarterdeck.domain.services.operations.leaving import go_with_session, unregister
from quarterdeck.domain.services.operations.looking import found, get, page, show
from quarterdeck.domain.services.operations.registering import Registrar

__all__ = ["Changer", "Registrar", "beat", "forget", "found", "get", "go_with_session", "page", "show", "unregister"]
