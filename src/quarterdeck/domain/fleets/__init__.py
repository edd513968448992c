"""The room of fleets: teams of coding agents, what they say to each other, where their panes are, who watches over it.

It decides that a fleet begins whole or not at all; that ids are small, and never given out again; that the
administrator sends and never receives; that a message is acknowledged by its recipient or canceled by its sender, and
only once, whoever tries at the same moment; and that whoever is deregistered can do nothing any more.

| module     | what it decides                                                                             |
|------------|---------------------------------------------------------------------------------------------|
| model      | what is asked for, stored and shown                                                           |
| rules      | the pure part: `crew` (fleets, members, panes, the monitor), `messages`, `monitoring`, `cards`  |
| operations | each verb over a batch, under the zone's lock; and what is looked at                            |
| notifying  | typing notices into panes, after the commit                                                    |
| stationing | making, reading, typing into and closing panes, for the routes: `ports` says what these need    |
| reaching   | whether a placement's pane is there; typing into it; telling it to leave, and ending it          |
| …_routes   | the wire, by noun: fleets, members, messages, the monitor                                       |

How it fails. Everything about a fleet is in the database and goes with its commit; what a pane shows does not: a
notice is an attempt with a receipt, and whoever missed it finds the message at the next poll. A pane's id means
something only to its own tmux server, on its own host: elsewhere nobody types, and the receipt says so.
"""
