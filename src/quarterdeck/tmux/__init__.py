"""tmux panes: starts coding agents in them, decides whether a pane may be typed into, and types.

Typed text must never reach another user's pane, a shell prompt, another host or another tmux server. So a line is
typed only if all of this is true:

- the host and the user are those of the placement;
- the socket belongs to this user;
- the tmux server behind it has the placement's pid and started before the placement was created;
- the pane exists, and its process is a child of that server;
- the coding agent, and not a shell, is in the foreground and reads the pane's terminal.

tmux itself compares the pids, the foreground command and the input state of the pane once more in the command that
types, and again before Enter.

| module         | what it does                                                                           |
|----------------|----------------------------------------------------------------------------------------|
| host           | id of this host, and the user                                                          |
| subprocess_run | runs one program without a shell, bounded in time and output                           |
| quoting        | quotes text for tmux scripts and formats                                               |
| pane_info      | what tmux reports about a pane, and guards that a pane must satisfy                    |
| commands       | runs tmux commands on one socket, if it belongs to this user                           |
| panes          | list, split, paste, Enter, capture, kill                                               |
| pane_lock      | lock: one process types into a pane at a time                                          |
| process_table  | processes of this host: foreground, names, shell prompts                               |
| wait_closed    | waits for panes to close, with one list of panes for all waiters                       |
| terminate      | terminates all processes of a pane                                                     |
| coding_agents  | the coding agents: how to start, recognise and stop each                               |
| notice_text    | text that is typed: one line without control characters; the first prompt              |
| keystrokes     | checks whether a placement's pane may be typed into, and types                         |
| errors         | exceptions                                                                             |
| version        | the installed tmux version                                                             |

How it fails. If tmux is missing, unreachable or hung, or prints too much, `TmuxError` is raised within a time-out. If a
pane has changed, `PaneChanged` is raised: nothing was typed, or the text without Enter. If a fact cannot be determined,
nothing is typed: the next poll returns a message whose notice was not typed, but a notice typed at a shell prompt runs
as a command. Without /proc it is not checked which process reads the terminal.
"""
