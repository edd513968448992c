"""The log of a task: its transitions, and the lines that its agents add.

This component decides who may add lines, redacts them, and merges lines and transitions into one log.

Lines. Only the holder of the current attempt adds lines, with its token. Lines are numbered per task in commit order
and cannot be changed. Secret-like values, and the encrypted values of the task itself, are redacted before storage. A
task has at most `LINES_MAX` lines; stack traces of failed attempts, which `domain.tasks` writes in the transaction of
the failure, may exceed it.

Reading. Transitions are not stored twice: they are read from the event log and rendered as entries. A cursor holds a
position in both sources. A reader at the end of a log may wait for new entries; one check serves all waiting readers of
a process.

How it fails. A line decides nothing, so adding one locks neither the zone nor the task: it may be stored just after its
attempt has ended. If the response of a COMMIT is lost, the repeated batch finds its lines by their ids and adds none.
Transitions are available as long as the event log is retained. If a wake-up is lost, a waiting reader finds the new
entries at its next poll. Lines are deleted with their task.
"""
