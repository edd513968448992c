"""`qd check --history FILE`: checks recorded client calls against the event log and the rows.

A client writes one line per call: the request, when it started and ended, and the response, if one arrived
(`docs/checking.md` describes the format). When the load has stopped, the checker reads all lines, the complete event
log and the tables, and checks every invariant of sessions and tasks separately. The package `invariants` lists them.

| module         | holds                                                                                    |
|----------------|------------------------------------------------------------------------------------------|
| run            | loads the event log and the rows from a snapshot, runs the invariants, builds the report |
| reader         | reads recorded calls from files                                                          |
| model          | calls, rows and violations; the outcome of a call                                        |
| nouns          | the transitions and attempts of invocations, tasks and delegations, one row each         |
| replay         | replays the event log: invocations and tasks at each position                            |
| session_replay | replays the event log: sessions at each position                                         |
| attempts       | which attempt a completion belongs to, and how that attempt ended                        |
| invariants     | one pure function per invariant                                                          |

Another noun with attempts is one more row in `nouns`, and one more name in `replay.ATTEMPT_NOUNS`. `nouns` and the
replays implement the documentation and do not use the components' own rules, because code that shares their bugs could
not find them.

A call with an **unknown outcome** (a lost connection, a time-out, 503 `outcome_unknown`) may or may not have taken
effect. Both are allowed, but a partial effect is not: a row without its event, or an event without its row, is a
violation.

What it cannot prove:

- Anything about calls that no history contains. The event log includes their effects, but not their responses.
- That the histories are honest, or that their clocks are right. Only times in the same file are compared.
- That reads returned current data.
- That the event log was not rewritten together with the rows. `qd audit verify` proves that.
- Anything that retention has deleted. Calls older than the oldest stored event are skipped and counted in the report.

Errors. A line that cannot be read stops the command before anything is checked. The error names the file and the line,
and the exit code is 1. Violations are printed one per line, with the position in the event log and the line in the
history, if known.
"""
