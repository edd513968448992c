"""`qd monitor start`: the process that watches one fleet, on the host of its panes.

It decides which members to remind of their messages. Each tick it sends a heartbeat. The response lists the members. A
member is due when its ping interval has passed. The monitor then observes the panes, and pings each member that is due
and has unread messages or a pane that has not changed for its interval. It never types into another
user's pane, into a shell, or on another host.

| module           | what it does                                                                       |
|------------------|------------------------------------------------------------------------------------|
| model            | the server's responses to a monitor                                                |
| config           | reads the known coding agents from the settings file                               |
| server_api       | calls to the server: claim, heartbeat, release                                     |
| pane_observer    | observes panes, with one list of panes per tmux server; types pings                |
| missing_panes    | finds placements whose pane does not exist                                         |
| loop             | the loop of ticks                                                                  |
| daemonize        | `--daemon`: starts a process that outlives its terminal                            |

How it fails. A second monitor of a fleet is refused and exits. If a heartbeat finds that another monitor owns the
fleet, or that the fleet is deleted, the process exits before it types anything. While the server is unreachable or its
response is lost, nothing is typed: the monitor does not know whether it still owns the fleet. For the same reason a
ping is typed only while the last heartbeat is so recent that no other monitor can have claimed the fleet. A ping that
was not typed is not reported, and is due again at the next tick. A monitor that exits without a release is recognised
by the age of its heartbeat, and on its own host by its pid.

This package belongs to the command line: it imports `core`, `client` and `tmux`, and nothing of the server.
"""
