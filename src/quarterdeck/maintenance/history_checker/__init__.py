"""`qd check --history FILE`: what clients wrote down, held against the log and the rows.

A client writes a line for each call it makes: what it asked, when it began and ended, and the answer, or that none came
(`docs/checking.md` has the form). Afterwards, when nothing is asked any more, all of those lines, the whole log and the
tables are read together, and every promise of the session plane and the work plane is judged by itself (`promises`):

no key had two live sessions; no limit was exceeded at any instant; every attempt had one holder; no stale completion
was accepted; nothing acknowledged was lost; what was refused left nothing; after its end nobody acted again; authority
only narrowed; whoever began after an answer comes after it in the log; the rows are what the log says; everything has
come to rest; a task began after those it depends on, and from where the last attempt had come to.

| module   | what it decides                                                              |
|----------|------------------------------------------------------------------------------|
| model    | what a line, a row and a finding are; what an answer means for the outcome     |
| replay   | who lived when, by the log, from the contract and not by the rooms' rules       |
| task_*   | the same two for tasks, whose words are the seed's                            |
| attempts | which attempt a completion was of                                             |
| promises | the judging, one pure function a file                                         |
| reading  | lines from files                                                              |
| judging  | rows and log from a snapshot; the verdict                                     |

**Unknown outcomes** (a connection that was cut, a time-out, 503 `outcome_unknown`) may have been done or not. Nobody is
blamed for either; but it must be one of the two, whole: a row without its event, or an event without its row, is a
breach.

What it cannot prove. Anything about calls that no history has: the log is judged with them in it, but whether they were
answered rightly nobody wrote down. That the histories are honest, or that their clocks are right: only the times of one
file are compared, and only with each other. That reads were current. That the log itself was not rewritten together
with the rows: that is `qd audit verify`. What retention has removed: calls older than the first event that is left are
not judged, and the verdict says how many.

How it fails. A line that cannot be read is a sentence with its place and exit code 1, before anything is judged. What
is wrong is told line by line, with the position in the log, the subject, and the line of the history that shows it.
"""
