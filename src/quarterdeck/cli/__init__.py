"""`qd`: one program with two parsers and one table.

| module      | what it decides                                                                          |
|-------------|------------------------------------------------------------------------------------------|
| entry       | from `sys.argv` to an exit code; every way a command can end                              |
| table       | what a command, an option and an argument are; the options every command has             |
| words       | which module knows which first word                                                       |
| thin        | parses a well-formed command line plainly, and never says no                              |
| full        | parses the rest with Click: help, completion, mistakes and what was meant instead         |
| context     | a command's options by type, its server, its output                                       |
| output      | tables, fields, colours, ages: pure text                                                  |
| pages       | lists that come in pages; one thing, told in full                                         |
| given       | what was given for a body: JSON as text, in a file, on standard input                     |
| claiming    | taking work, of a service or for an agent                                                 |
| tree, graph | a tree of sessions, and delegations that hang together, drawn                             |
| branches    | a task with what it depends on and what it blocks, drawn                                  |
| follow      | events as they happen, until somebody has had enough                                     |
| waiting     | until an invocation has ended                                                             |
| watching    | until tasks have ended; bars: how far they have come                                      |
| moments     | an instant, or so long from now, or so long ago                                           |
| frames      | one picture of the work plane; rates: how often something happens; screen: the terminal   |
| trailing    | long polls, one after the other                                                           |
| completing  | what only the server knows, for a shell that completes a word                             |
| fleetwise   | what the commands of fleets share; envelope: how a message looks; crew: agents of a fleet |
| receipt     | what an ending stopped and left, and what that means for the exit code                    |
| zone, session, service, invocation (and work), delegation, task (and adding, labour, lines), agent, role,          |
| fleet, member, message, monitor, coordinator, cost, top, explain, doctor, key, events, server, upkeep, about:      |
|             | the commands, one file per noun                                                           |

Agents run `qd` all day, so a command that is spelled well costs little more than Python's own start: the
thin parser reads it from the noun's table and runs the function named there. Whatever the thin parser does
not understand wholly — a mistake, `--help`, a rare spelling — it leaves to Click, which is built from the
same table and hands back the same `Ask`. So no command, option or help text exists twice, and a test
compares the two parsers on generated command lines.

This package imports `core` and `client`, and where panes are looked at `monitor` and `panes`. `up`, `sweep`,
`db`, `config` and `token` need the server's code: they are handed over to `python -m quarterdeck` in place of
this process.

How it fails. Whatever is raised ends as one sentence on stderr, `qd: …` (the problem as JSON with
`--json`), and as an exit code: 0 ok, 1 failed, 2 usage, 3 refused by quota or policy, 4 not found, 5
timeout. The commands of fleets say `Error: …`, and exit with 1 whatever it was. A reader that closes the
pipe and a Ctrl-C end the command the way those signals end any program: quietly, and visibly to the shell.
"""
