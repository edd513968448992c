"""Services: the endpoints that sessions and applications offer, and that invocations call.

This component decides which services exist, who owns them, and which endpoints the server may send requests to.

**Identity.** A service is identified by its zone, application and endpoint. Registering it again returns 200 instead
of 201. Fields in the request then replace the stored values, and omitted fields keep theirs. Each registration has a
registrant: a session, or the application itself, which is stored with the session id ''.

**Lifetime.** A service is registered while it has a live registrant. When a session ends, its registrations are deleted
in the same transaction. A service that has no other registrant is then unregistered (`service.unregister`), and other
components react to that event in the same transaction. After a session expires, or after a large cascade marks it as
terminated, some time may pass until its registrations are deleted. They stop counting at once: a service without a live
registrant is not found. An application's own registration is deleted only by a request, or when its zone ends. A
service that is registered again keeps its id, its `created_at` and the number of its secret, and otherwise gets the
defaults of a new service. A service that stays unregistered for QD_SERVICE_RETENTION_DAYS, and that no stored
invocation refers to, is deleted.

**Delivery** is `pull` (workers claim invocations) or `push` (the server posts them to the endpoint). A push endpoint
whose host is a private IP address or a local name is refused. Each push also checks the addresses that the name
resolves to (`core.ssrf`). The secret that signs pushes is derived and not stored (`core.webhook_signing`). A response
contains the secret only when delivery becomes push or the secret is rotated, and it is a new one each time.

**Heartbeats** record when a service was last active. They have their own lane, and write an event only if the health
changes. Missing heartbeats never unregister a service: it reports its own health, and clients decide how to react.

Every change is decided under the zone's row lock, as are changes to sessions. So no session can end between the check
that it is live and the commit of its registration.

Errors. A session that has ended cannot register (404), a suspended session cannot either (409), and a caller cannot
register for an application that it may not act for (403). A service that is unknown, unregistered, in another zone, or
not registered by the session in the path is 404 `agent_service_not_found`; the response does not say which. Deleting a
registration that no longer exists succeeds and changes nothing. If the response with a secret was lost, rotate the
secret. If the server's signing key changes, every secret changes: rotate them all.
"""
