"""`qd`, the command line: one program with two parsers and one command table.

| module            | what it holds                                                                      |
|-------------------|------------------------------------------------------------------------------------|
| main              | entry point: from `sys.argv` to an exit code                                       |
| command_table     | commands, options, arguments and converters; the global options                    |
| registry          | maps the first word of a command to the module that defines it                     |
| fast_parser       | parses well-formed command lines, reports no errors                                |
| click_parser      | parses all other command lines with Click: help, completion, usage errors          |
| shell_completion  | completion of fleets, members and messages from the server                         |
| context           | the options of a command, its request and its output                               |
| errors            | error output and exit codes                                                        |
| input             | JSON from files and standard input, times relative to now, claims                  |
| output            | tables, fields, colors and durations as text                                       |
| list_output       | paged lists with their columns, and single objects                                 |
| receipt           | deletions with a receipt, and the exit code of the receipt                         |
| session_tree, task_tree, delegation_graph | draw trees and graphs                                      |
| progress_bars     | progress bars on stderr                                                            |
| wait              | follows the event stream until tasks or an invocation have ended                   |
| long_poll         | repeated long polls, for commands that wait for new messages or log lines          |
| top_view, terminal | draw the frames of `qd top`, and control the full-screen terminal                 |
| fleet_common      | shared by the fleet commands: ids, paths, text input, message output, errors       |
| fleet_agents      | `qd agent` with a fleet id                                                         |
| task_add, task_work, task_logs | parts of `qd task`                                                    |
| server            | `qd up`, `status`, `stop`, `logs`                                                  |
| admin             | `qd sweep`, `token`, `db`, `audit`, `check`, `config`, `version`, `completion`     |
| cost              | `qd cost`, `budget`                                                                |
| sink              | `qd sink`, `redis`                                                                 |

Every other module holds the commands of the noun it is named after: agent, coordinator, delegation, doctor, events,
explain, fleet, invocation, key, member, message, monitor, role, secrets, service, session, task, top, webhook, zone.

Agents run `qd` constantly, so a well-formed command must take little longer than starting Python. The fast parser
parses it and imports only the module that defines the command. Click parses everything else: usage errors, `--help`,
unusual spellings. Both parsers read the same command table and return the same `ParsedCommand`. So no command, option
or help text is defined twice, and a test compares both parsers on generated command lines.

A module defines each command where its function is: `@GROUP.command(…)` names the command, its help, arguments and
options. An option names the field of the request that it fills.

This package imports `core` and `client`, and `monitor` and `tmux` for panes. `up`, `sweep`, `db`, `audit`, `check`,
`config show` and `token` need the server's code: they replace this process with `python -m quarterdeck`.

How it fails. Every error is a line on stderr, `qd: …`, with details below it (with `--json` the problem as JSON), and
an exit code: 0 ok, 1 failed, 2 usage, 3 limit reached or zone frozen, 4 not found, 5 timeout or server unavailable.
Fleet commands print `Error: …` and exit 1 for every error except usage; `qd member delete` also exits 2 if the agent
did not exit. After a closed pipe the command ends itself with SIGPIPE, and after Ctrl-C with SIGINT, without a message:
the shell sees the signal.
"""
