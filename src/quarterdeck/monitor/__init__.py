"""`qd monitor start`: the process that watches the panes of one fleet. It runs on the host of the panes.

The monitor decides which members to ping. It sends a heartbeat each tick, and the response lists the members. A member
is due when pings are enabled for it and its ping interval has passed. The monitor observes all panes, and pings each
member that is due and has unread messages or a pane that has not changed for its interval. With `--policy seed` it
pings every member that is due. It never types into another user's pane, into a shell, or on another host.

| module           | what it does                                                                       |
|------------------|------------------------------------------------------------------------------------|
| model            | the server's responses to a monitor                                                |
| config           | reads the known coding agents from the settings file                               |
| server_api       | calls to the server: claim, heartbeat, release                                     |
| pane_observer    | observes panes, listing those of each tmux server once; types pings                |
| missing_panes    | finds placements whose pane does not exist                                         |
| loop             | the main loop: one iteration per tick                                              |
| daemonize        | `--daemon`: starts a background process that is detached from the terminal         |

How it fails. The server refuses a second monitor of a fleet, and that process exits. If the server refuses a heartbeat
because another monitor owns the fleet, or because the fleet is deleted, the process exits without typing anything.
While the server is unreachable or its response is lost, the monitor types nothing: it does not know whether it still
owns the fleet. For the same reason it types a ping only while its last heartbeat is so recent that no other monitor can
have claimed the fleet. A ping that was not typed is not reported, so its member is still due at the next tick. If a
monitor exits without releasing the fleet, the server detects this from the age of the last heartbeat. A new monitor of
the same user on the same host detects it from the pid.

This package belongs to the command line: it imports `core`, `client` and `tmux`, and no server code.
"""
