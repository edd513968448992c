"""`qd`, the command line: one program with two parsers and one command table.

| module            | what it holds                                                                      |
|-------------------|------------------------------------------------------------------------------------|
| main              | entry point: from `sys.argv` to an exit code                                       |
| command_table     | commands, options, arguments and converters; the global options                    |
| registry          | which module has the commands of a first word                                      |
| fast_parser       | parses well-formed command lines, reports no errors                                |
| click_parser      | parses the rest with Click: help, completion, usage errors and suggestions         |
| shell_completion  | completion of fleets, members and messages from the server                         |
| context           | the options of a command by type, its server, its output                           |
| errors            | error output and exit codes                                                        |
| input             | request bodies from options, files and standard input; options of claims           |
| time_args         | time arguments: an ISO 8601 time, or a duration from now or before now             |
| output            | tables, fields, colors, ages: pure text                                            |
| list_output       | paged lists, and single objects                                                    |
| receipt           | receipts of terminations, and their exit code                                      |
| session_tree, task_tree, delegation_graph | drawings                                                   |
| progress_bars     | progress bars on stderr                                                            |
| wait              | waits for tasks and invocations to end, by the event stream                        |
| long_poll         | repeated long polls, for commands that follow something                            |
| top_view, terminal | the frames of `qd top`, and the full-screen terminal                              |
| fleet_common      | shared by the fleet commands: ids, texts, message output, errors                   |
| fleet_agents      | `qd agent` with a fleet id                                                         |
| task_add, task_work, task_logs | parts of `qd task`                                                    |
| invocation_work   | `qd invocation` for workers                                                        |
| server, server_logs | `qd up`, `status`, `stop`, `logs`                                                |
| admin             | `qd sweep`, `token`, `db`, `audit`, `check`, `config`                              |
| cost              | `qd cost`, `budget`                                                                |
| version           | `qd version`, `completion`                                                         |

Each other module holds the commands of the noun it is named after: agent, coordinator, delegation, doctor, events,
explain, fleet, invocation, key, member, message, monitor, redis, role, secrets, service, session, sink, task, top,
webhook, zone.

Agents run `qd` all the time, so a well-formed command costs little more than the start of Python. The fast parser
reads it from the table of its module and runs its function. Everything else — a mistake, `--help`, a rare spelling —
goes to Click, which is built from the same table and returns the same `ParsedCommand`. So no command, option or help
text exists twice, and a test compares both parsers on generated command lines.

This package imports `core` and `client`, and `monitor` and `tmux` for panes. `up`, `sweep`, `db`, `audit`, `check`,
`config show` and `token` need the server's code: they replace this process with `python -m quarterdeck`.

How it fails. Every error is a line on stderr, `qd: …`, with details below it (with `--json` the problem as JSON), and
an exit code:
0 ok, 1 failed, 2 usage, 3 refused by quota or policy, 4 not found, 5 timeout. Fleet commands print `Error: …` and
exit 1 for every error except usage. A closed pipe and Ctrl-C end the command by that signal: without a message, but
visible to the shell.
"""
