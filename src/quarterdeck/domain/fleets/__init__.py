"""Fleets: teams of coding agents with their members, messages, tmux panes and monitor.

- A fleet is created together with its director and its administrator, or not at all.
- The ids of fleets, members and messages are small integers per zone and are never reused.
- The administrator sends messages but never receives any.
- A message waits for input (`input_required`) until its recipient acknowledges it (`completed`) or its sender cancels
  it (`canceled`). It ends at most once, even under concurrent requests.
- A deregistered member can no longer act. Its messages stay readable.

| module         | holds                                                                                          |
|----------------|------------------------------------------------------------------------------------------------|
| model          | rows, commands, request bodies, filters and views                                              |
| rules          | decisions without I/O: fleets, members, messages, the monitor                                  |
| operations     | the operations of the lanes `fleet` and `message`, under the zone's lock, and the reads        |
| pane_notifier  | types notices of new messages into panes, after the commit                                     |
| pane_port      | the interface by which the routes access panes                                                 |
| member_panes   | implements `pane_port`: creates, reads, types into and closes the panes of members             |
| pane_access    | the pane of one placement: finds it, types into it, makes its agent exit, kills it             |
| route_params   | path parameters, idempotency keys and cursors that the routes share                            |
| *_routes       | the routes of fleets, members, messages and the monitor                                        |
| queries        | the SQL statements of `queries.sql` and `lists.sql`                                            |

How it fails. The state of a fleet is stored in the database and changes in one transaction. Panes are not
transactional: a notice is tried once and gets a receipt, and a recipient that missed it finds the message at its next
poll. A pane id is valid only for its own tmux server on its own host. Nothing is typed into any other pane; the receipt
gives the reason.
"""
