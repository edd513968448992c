"""Fleets: teams of coding agents with their members, messages, tmux panes and monitor.

- A fleet is created together with its director and its administrator, or not at all.
- The ids of fleets, members and messages are small integers per zone and are never reused.
- The administrator sends messages but never receives any.
- A message is `input_required` until its recipient acknowledges it (`completed`) or its sender cancels it
  (`canceled`). Only one of these can happen, even if both are requested at once.
- A deregistered member can no longer act. Its messages stay readable.

| module         | holds                                                                                          |
|----------------|------------------------------------------------------------------------------------------------|
| model          | rows, commands, request bodies, filters and views                                              |
| rules          | decisions without I/O: fleets, members, messages, the monitor                                  |
| operations     | batches of the lanes `fleet` and `message`, under the zone's lock; reads                       |
| background     | types notices about new messages into panes, after the commit                                  |
| routes         | the routes for fleets, members, messages and the monitor                                       |
| queries        | the SQL statements in `queries.sql` and `lists.sql`                                            |

How it fails. The state of a fleet is stored in the database, and each command changes it in one transaction. Panes are
not transactional: the server tries to type each notice once and records the outcome as a receipt. A recipient that
missed a notice gets the message at its next poll. A pane id is valid only on one tmux server of one host. If it might
refer to a different pane, nothing is typed, and the receipt gives the reason.
"""
