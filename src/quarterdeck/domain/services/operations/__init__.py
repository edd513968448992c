"""Operations of services.

A write takes a batch of commands, loads their rows under the zones' locks, decides with `rules` and writes the result.

| module     | what it does                                                                          |
|------------|---------------------------------------------------------------------------------------|
| load       | loads the batch for `show`, `unregister`, updates and heartbeats                      |
| register   | registers services                                                                    |
| update     | updates services and records their heartbeats                                         |
| unregister | unregisters services, by request and when a session or zone ends; deletes them later  |
| reads      | shows and lists services; the statement and decoder for other components              |
| persist    | writes the rows and events that were decided                                          |
"""

from quarterdeck.domain.services.operations.reads import (
    decode_registered as decode_registered,
    load_statement as load_statement,
)
from quarterdeck.domain.services.operations.unregister import on_session_or_zone_ended as on_session_or_zone_ended
