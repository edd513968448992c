"""Services: the endpoints that sessions and applications offer, and that invocations are made of.

This room decides which services there are, whose they are, and where the server lets itself be sent by them.

A service is known by its zone, its application and its endpoint. To register it again is to say again what it is: 200
instead of 201, what is said replaces what was there, and what is not said stays. Whoever registers it is noted: a
session, or the application itself, which is noted as the session '' that never ends.

**A service goes with those who registered it.** It is registered while one of them lives, or until it is unregistered
by name. When a session ends, its registrations end in the same transaction, and a service that nobody else has
registered is unregistered with them (`service.unregister`, which the rooms above hear of at once). Between the moment
a session's time runs out, or a large ending stamps it, and the moment that is settled, its registrations count for
nothing already: a service that only ended sessions have registered reads as gone. When a zone ends, what its
applications registered themselves goes, too. A service that was gone and is registered again keeps its id; what was
said of it before is forgotten. One that stays away for QD_SERVICE_RETENTION_DAYS, and of which no invocation is kept
any more, is removed, and its id with it.

**Delivery** is `pull` (workers claim what is asked of it) or `push` (the server posts it to the endpoint). An endpoint
that is pushed to must not be an address of the server's own network, as far as its spelling tells; where its name
leads is judged again at each push (`core.addresses`). The secret that pushes are signed with is derived and not stored
(`core.pushkeys`); it is shown when the delivery becomes push and when it is rotated, each time another, and never else.

**Heartbeats** say that a service was heard of. They take a lane of their own, and write no event unless the health
changes. Nothing here ends for want of them: health is what a service says of itself, and who reads it decides.

Everything is decided under the zone's row lock, as all that concerns sessions is: no session can end between being
found alive and its registration being committed.

How it fails. A session that has ended registers nothing (404), one that is suspended neither (409), and nobody
registers for an application that is not theirs (403). A service that is unknown, gone, of another zone, or not
registered by the session in the path is 404 `agent_service_not_found`, and which of these it was is not told.
Unregistering what is unregistered succeeds and moves nothing. If the answer that showed a secret was lost, rotate it.
With another signing key every secret is another: rotate them all.
"""
