"""Tasks: durable units of work, with dependencies, retries, progress and checkpoints.

This room decides which task may begin, who gets it, whose word about it counts, and what its end means for those that
depend on it.

A task waits for an agent, and before that perhaps for other tasks, or for a moment (it was to begin later, or its
backoff runs). What may begin stands in one index, by class (its type, and the capabilities it asks for) and turn, a
number that the zone's strategy gives it; a claim takes the lowest turns of the classes that its agent suits. Whatever
becomes ready is handed to a claim that waits, in the same commit.

Each time it is given out a task begins an attempt, with a number and a token. Only whoever shows the token of the
present attempt moves the task; an older one is refused and changes nothing, however late it comes. There is no lease
for each task: an attempt lasts as long as its agent is heard of (`agents`), and not beyond `timeoutSeconds`.

Everything is decided in one lane, under the zone's lock: load, decide on the board (`rules.board`, which does no I/O),
write, commit. A batch of a thousand costs a handful of statements.

How it fails. An attempt that fails, times out, makes no progress or loses its agent is followed by another after its
backoff, which stands in the row and survives every restart; after the last one the task is FAILED for good, with one
alert, and those that depend on it hear of it in bounded passes. A claim whose answer reached nobody is given back, and
does not count. What the coordinator does not get to do (it is down) is late, never lost: every moment it acts on
stands in a row.
"""
