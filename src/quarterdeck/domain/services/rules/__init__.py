"""Pure rules of services: no I/O, no clock, no randomness.

| module        | decides                                                                              |
|---------------|--------------------------------------------------------------------------------------|
| endpoint_urls | which URLs may be registered, and which of them the server may push to               |
| states        | whether a service is registered, which service a path names, its view; the batch     |
| registration  | the result of a registration: a new service, an existing one, or a reactivated one   |
| update        | the result of an update, of a heartbeat, and of deleted registrations                |
"""
