"""Side-by-side benchmarks: what Quarterdeck reaches, beside what the machine and the database reach without it.

    python -m bench                  everything, then docs/benchmarks.md and docs/benchmarks.svg
    python -m bench shell cli        these only; the others keep their last results
    python -m bench report           draw the documents again from .bench/results.json

An absolute figure says more about a machine than about a program, and moves by a third from one hour to the next. So
everything here is a ratio to a control that ran in the same minute on the same disk, in an order that reads the same
forwards and backwards (A-B-B-A), so that a machine which slows down steadily favours neither side.

One file is one measurement: `spawn`, `connections`, `growth`, `latency`, `replicas`, `walls`, `cascade`, `live`,
`streams`, `invocations`, `work`, `start`, `delegations`, `sweeps`, `tasks`, `making`, `pickup`, `agents`, `matching`,
`claims`, `messages`, `shell`, `cli`, `idle`, `audit`. Each gives a `Part` (`results.py`): lines of runs, figures with
what was asked of them, curves, notes. Around them: `plan` (how long, how often), `stage` (PostgreSQL, Redis, servers,
zones), `meter` (who used the processors), `load` (wrk, or `loadgen` where wrk is not installed), `beside` (who listens
or works meanwhile), `controls` (pgbench and SQLite by themselves), `ledger` and `calls` (is everything that was
acknowledged there?), `crew` (fleets), `typed` and `spoken` (their messages), `peers` (other programs, from PyPI).

How it fails: a run that meets an answer other than 201, or after which the database holds fewer rows than were
acknowledged, or more than were acknowledged and under way, ends the whole with a sentence, because a rate of wrong
answers is no rate. A figure that misses its mark ends nothing: it is printed and drawn as missed. Everything that is
started is stopped by its process id, on interruption too. Linux only: the shares of the processors come from /proc.

    QD_BENCH_SECONDS=8    how long one run takes
    QD_BENCH_ROUNDS=3     how often each round of runs is repeated; medians are of these
    QD_BENCH_ROWS=1000000 how far the tables of sessions, tasks and messages grow at most
    TMPDIR=/tmp           the disk that is measured
"""
