"""Pure rules of webhooks: no I/O, no clock, no randomness.

| module      | decides                                                                            |
|-------------|------------------------------------------------------------------------------------|
| payloads    | which types an endpoint may name and an event matches; the body of a delivery      |
| states      | the states of a delivery, when the next attempt is due, what a response means      |
| endpoints   | which endpoints may be created, and how they change                                |
| views       | the responses for endpoints and deliveries                                         |
"""

from quarterdeck.domain.webhooks.rules.states import DELIVERY_STATES as DELIVERY_STATES
