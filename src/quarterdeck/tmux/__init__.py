"""Panes of tmux: where coding agents run, how a line is typed to one, and when nothing may be typed at all.

It decides whether a pane is the one that was meant, and what may pass into it. A keystroke must never land in a
stranger's pane, at a shell's prompt, on another host or in another tmux server, so a line goes in only if all of this
holds: the host and the user are those of the placement; the socket belongs to this user; the tmux server behind it has
the placement's pid and began before the placement was made; the pane is there and its process a child of that server;
and in front, reading the pane's terminal, is the agent and no shell. What was seen is held against the pane once more
by tmux itself, in the step that types, and again before Enter.

| module    | what it decides                                                                            |
|-----------|--------------------------------------------------------------------------------------------|
| host      | which host this is, and as whom                                                              |
| running   | one call of a program: arguments as a list, never a shell; bounded in time and in output      |
| words     | how text is written where tmux would otherwise read more into it                             |
| seen      | what tmux tells of a pane, and what must hold of one before something is done to it          |
| calling   | calls to one tmux server, if it is this user's own                                           |
| tmux      | what is asked of a tmux server: look, split, paste, Enter, capture, kill                      |
| turns     | who types into a pane, of several who want to                                                |
| processes | who runs in front in a pane, by what names, and whether that is a prompt                       |
| leaving   | waiting for panes to go, one look for all of them                                            |
| ending    | ending everything that runs in a pane, and making sure of it                                 |
| coding    | the coding agents: how each is begun, how it is known, how it is told to leave                 |
| notice    | what is typed: one line without anything that a terminal would obey; the first prompt         |
| checking  | whether a placement's pane may be typed into, and typing into it                             |

How it fails. A tmux that is missing, away, stuck or talks too much is a `TmuxError` with a sentence, after so many
seconds at most. A pane that is no longer what it was is `PaneChanged`, and nothing was typed. What cannot be told for
certain counts as "no": a notice that was not typed is found at the next poll, and one at a prompt is a command.
"""
