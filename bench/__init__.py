"""Benchmarks of Quarterdeck, each compared with a control: the database alone, a plain server, or another queue.

    python -m bench                  all measurements, then docs/benchmark*
    python -m bench shell cli        only these; the others keep their last results
    python -m bench report           write the documents again from .bench/results.json

An absolute number depends on the machine, and varies by a third from one hour to the next. So the results are ratios to
a control that ran in the same minute on the same disk. Runs are ordered A-B-B-A, so that a machine that slows down
steadily favours neither side.

Each measurement is one module and returns `Findings` (`results`): runs, figures with their targets, curves and
notes. Four names differ from their modules: `walls` (`row_security`), `live` (`sse_latency`), `making`
(`task_creation`) and `shell` (`http_overhead`). The other modules:

| module                               | holds                                                                     |
|--------------------------------------|---------------------------------------------------------------------------|
| plan                                 | the environment variables below                                           |
| testbed                              | PostgreSQL, Redis, databases, servers and zones for the measurements      |
| server_process, background_process   | child processes: servers, and processes that work during a run            |
| child_types                          | the input and output of child processes                                   |
| meter                                | CPU time of the server, PostgreSQL, the load generator                    |
| load, loadgen, openloop, raw_http    | load generators: wrk, our own closed loop, our own open loop              |
| listeners, stream_reader, worker     | child processes: SSE clients, a Redis stream reader, an SDK worker        |
| start_timer, claim_timer, sweeper    | child processes: time the start of calls, claims, a sweep                 |
| echo, probe, no_row_security         | servers to compare with                                                   |
| controls                             | pgbench and SQLite without Quarterdeck                                    |
| spawn_runner, enqueue_runner         | one run of spawns or invocations, with its checks                         |
| session_counts, invocation_counts    | check that the database holds exactly what was acknowledged               |
| server_metrics                       | reads /metrics of a server                                                |
| request_bodies, table_fill           | request bodies, and rows to fill tables                                   |
| fleets, message_commands, message_load | fleets and their messages                                               |
| delegation_graph                     | the graph for `delegations`                                               |
| peers                                | other queues from PyPI                                                    |
| report, svg_chart, machine           | the documents                                                             |

How it fails. An unexpected response ends the benchmark with an error, because a rate of wrong responses means nothing.
So does a database with fewer rows than were acknowledged, or with more than were acknowledged and in flight. A figure
that misses its target is reported as missed. All child processes are stopped by their process id, also on an interrupt.
The benchmark needs Linux, because CPU shares are read from /proc.

    QD_BENCH_SECONDS=8    length of one run
    QD_BENCH_ROUNDS=3     repetitions of each round of runs; results are medians over them
    QD_BENCH_ROWS=1000000 largest size to which the tables of sessions, tasks and messages are filled
    TMPDIR=/tmp           the disk that is measured
"""
