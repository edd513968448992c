"""Services: the endpoints that sessions and applications offer, and that invocations call.

This component decides which services exist, who owns them, and which endpoints the server may send requests to.

**Identity.** A service is identified by its zone, application and endpoint. Registering it again returns 200 instead
of 201: fields in the request replace the stored values, other fields keep theirs. Each registration records who made
it: a session, or the application itself, which is stored as the session '' and never ends.

**Lifetime.** A service is registered while at least one of its registrants is live, or until it is unregistered by
name. When a session ends, its registrations are deleted in the same transaction. A service that has no other registrant
is then unregistered (`service.unregister`), and other components react to that event in the same transaction. After a
session expires, or after a large cascade marks it as terminated, some time may pass until its registrations are
deleted. They stop counting at once: a service whose registrants have all ended reads as not found. When a zone ends,
the registrations that its applications made themselves end too. A service that is registered again after its end keeps
its id, and nothing else of its earlier description. A service that stays unregistered for QD_SERVICE_RETENTION_DAYS,
and that no stored invocation refers to, is deleted with its id.

**Delivery** is `pull` (workers claim invocations) or `push` (the server posts them to the endpoint). A push endpoint
must not be spelled as an address of a private network; the addresses its name resolves to are checked again at each
push (`core.ssrf`). The secret that signs pushes is derived and not stored (`core.webhook_signing`). A response contains
it only when delivery becomes push and when the secret is rotated; each time it is a new secret.

**Heartbeats** record when a service was last active. They have their own lane, and write an event only if the health
changes. A service never ends because heartbeats are missing: it reports its own health, and clients decide what to do
with it.

Everything is decided under the zone's row lock, like everything that concerns sessions. So no session can end between
the check that it is live and the commit of its registration.

How it fails. A session that has ended cannot register (404), a suspended session cannot either (409), and a caller
cannot register for an application that it may not act for (403). A service that is unknown, unregistered, in another
zone, or not registered by the session in the path is 404 `agent_service_not_found`; the response does not say which.
Unregistering an unregistered service succeeds and changes nothing. If the response with a secret was lost, rotate the
secret. If the server's signing key changes, every secret changes: rotate them all.
"""
