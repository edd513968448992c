"""Access: which callers may do what. Every component checks its callers here, in the transaction of the command.

A credential may act for a session, for an agent, or for both: its *bearer*. On the routes of a workspace
(`/api/v1`), the caller also needs a permission, which its role in the zone has or has not (`zones.rules.PERMISSIONS`).
The first of these that applies is the outcome of a command:

1. `BUSY`: another transaction has locked the zone of the command, or the zone of the caller's session. The lane tries
   again.
2. 401 `session_ended`: the caller's session has ended, or a session with the id of the caller's agent has ended.
3. 401 `agent_ended`: the caller's agent was terminated, or registered again after the token was issued. An agent id
   that is not registered is no error.
4. 404: the zone does not exist, or the caller cannot access it.
5. 403 `not_a_member`: the caller has no role in the workspace.
6. 403 `forbidden_role`: the caller's role lacks the permission.

Writes check under the lock of the command's zone and of the bearer's zone (`docs/LOCKS.md`), so a session or an agent
cannot end, and a role cannot change, between the check and the commit. Heartbeats, log lines and the revocation of API
keys are the exceptions: they take no zone's lock. The statements of this component read the tables of sessions and
agents, because it is below both.

Role assignments, which the API calls members, are stored by `domain.zones` and changed here.
"""
