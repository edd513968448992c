"""`qd monitor start`: the process that watches over one fleet, on the host of its panes.

It decides whom to remind of its messages. Each tick it says that it is still there, and hears who is due by the clock
and how much waits for each; then it looks at the panes, and pings those who have unread messages or whose pane has
shown the same for as long as their interval. Nobody else's pane, no shell, and nothing on another host is typed into.

| module    | what it decides                                                                          |
|-----------|------------------------------------------------------------------------------------------|
| model     | what the server says of those who are watched over                                        |
| config    | which coding agents there are                                                             |
| desk      | what is said to the server: claim, beat, release                                           |
| quiet     | since when a pane has shown the same                                                       |
| eyes      | what can be seen of the panes, with one list of panes for each tmux server; and the typing   |
| stale     | which placements are of panes that are there no more                                       |
| process   | the loop: a tick, a wait that a signal ends, and how it ends                              |
| detaching | `--daemon`: a process that outlives its terminal, and tells whoever started it how it began  |

How it fails. Whoever starts second is told that a monitor runs already, and ends. A beat that finds another owner ends
the process before it types anything; so does the end of its fleet. While the server is away, or its answer is lost,
nothing is typed: a monitor that does not know whether it is still the one must not act as if it were. For the same
reason a ping is typed only while the last beat is young enough that nobody else can have claimed the fleet. A ping that
did not land is not said to have landed, and is due again at the next tick. What ends without a word is found by the age
of its heartbeat, and by its pid on its own host.

This package is on the side of the command line: it imports `core`, `client` and `panes`, and nothing of the server.
"""
