"""The pure part of the house: no I/O, no clock of its own, no chance.

Everything above imports from here and nothing here imports from above.

| module  | what it decides                                                             |
|---------|------------------------------------------------------------------------------|
| errors  | the kinds of refusal and fault, and how each looks from outside               |
| ids     | UUIDv7 text: sortable by time, made before the statement that stores it       |
| clock   | instants as integer milliseconds, and how they are shown                      |
| moves   | state machines as data: which verb may take which state where                 |
| retry   | when the next attempt is due, with time and chance as arguments               |
| keys    | idempotency keys: their scope, and when two requests are the same             |
| paging  | opaque cursors that stay good when their row is gone                          |
| addresses | which hosts the server may be sent to by somebody else's word                 |
| pushkeys | the secrets by which pushed invocations are signed                             |
| webhooks | the headers by which whoever is called knows that it was us                    |
| seals   | what is signed about the log, and when events may go                          |
| proof   | whether a log is what was sealed, and which row is the first that is not      |
| shares  | who may be called how often at once                                           |
| occurrence | an event, for those who tell others of it                                      |
| asking  | what everything has that is asked of a room                                   |
| wire    | what a room says about its routes, so that one shell can serve all rooms      |

A bug here is a bug everywhere, so each module has a test in `tests/rules/` that walks all of its cases.
"""
