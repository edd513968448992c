"""Pure rules of invocations: no I/O, no clock, no randomness.

| module        | holds                                                                    |
|---------------|--------------------------------------------------------------------------|
| states        | the states, the changes to a row, and the response views                 |
| decider       | decides the commands of a batch, in order of arrival                     |
| errors        | the problems that commands return                                        |
| explain       | explains the state of an invocation                                      |
| push_protocol | the request to a push endpoint, and what its response means              |
"""

from quarterdeck.domain.invocations.rules.states import INVOCATION_STATES as INVOCATION_STATES
