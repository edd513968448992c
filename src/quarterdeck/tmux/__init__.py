"""Starts coding agents in tmux panes, decides whether a pane may be typed into, and types.

Typed text must never reach another user's pane, a shell prompt, another host or another tmux server. So a line is
typed only if all of these conditions hold:

- the placement names this host and this user;
- the tmux socket belongs to this user;
- the tmux server on that socket has the placement's pid and started before the placement was created;
- the pane exists, and its process is a child of that server;
- the coding agent, and not a shell, is in the foreground and reads the pane's terminal.

The command that types makes tmux compare the pids, the foreground command and the input state of the pane once more,
and so does the command that sends Enter.

| module         | what it does                                                                           |
|----------------|----------------------------------------------------------------------------------------|
| host           | id of this host and of this user                                                       |
| subprocess_run | runs one program without a shell, bounded in time and output                           |
| quoting        | quotes text for tmux scripts and formats                                               |
| pane_info      | what tmux reports about a pane, and guards that a pane must satisfy                    |
| commands       | runs tmux commands on one socket, if it belongs to this user; the tmux version         |
| panes          | list, split, paste, Enter, capture, kill                                               |
| pane_lock      | lock: one process types into a pane at a time                                          |
| process_table  | processes of this host: foreground, names, shell prompts                               |
| wait_closed    | waits for panes to close, listing the panes once for all waiters                       |
| terminate      | terminates all processes of a pane                                                     |
| coding_agents  | the coding agents: how to start, recognize and stop each                               |
| notice_text    | text to type: one line without control characters; the first prompt of a member        |
| keystrokes     | checks whether a placement's pane may be typed into, and types                         |
| errors         | exceptions                                                                             |

How it fails. If tmux is missing, unreachable or hung, or prints too much, `TmuxError` is raised within the timeout. If
a pane has changed, `PaneChanged` is raised: either nothing was typed, or only the text without Enter. If a condition
cannot be checked, nothing is typed: a missed notice is harmless because the next poll returns the message, but a notice
typed at a shell prompt runs as a command. There is one exception: text is typed even if it is unknown which process
reads the terminal, for example without /proc.
"""
