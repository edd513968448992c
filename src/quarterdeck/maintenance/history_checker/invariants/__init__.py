"""The promises, one file each. Every one is a pure function from evidence to findings, and reads like its definition.

| promise       | says                                                                                         |
|---------------|----------------------------------------------------------------------------------------------|
| story         | the log tells one story: each session begins once, ends once, children before parents          |
| one-key       | no key had two live sessions, or ever two invocations                                          |
| limits        | no limit was exceeded at any instant                                                           |
| one-holder    | every attempt had one holder                                                                   |
| stale         | no stale completion was accepted                                                               |
| acknowledged  | nothing acknowledged was lost                                                                  |
| refused       | what was refused left nothing behind                                                           |
| after-the-end | after its end nobody acted again                                                               |
| narrowing     | authority only narrows from one delegation to the next, and never runs in a circle             |
| order         | whoever begins after another's answer comes after it in the log                                |
| agreement     | the rows are what the log says, also of calls whose outcome nobody heard                       |
| rest          | everything has come to rest                                                                    |
| dependencies  | a task began only after those it depends on                                                    |
| resumed       | whoever began an attempt at a task was given what was last saved of it                         |

None of them uses the rooms' own rules. Each walks the log by itself: what that costs in time it saves in memory, and in
what a reader must know to believe it.
"""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.maintenance.history_checker.invariants import (
    authority_narrows,
    dependencies,
    event_sequence,
    limits,
    no_action_after_end,
    no_lost_acks,
    no_stale_completion,
    quiescence,
    realtime_order,
    refusals_leave_nothing,
    resume_from_checkpoint,
    rows_match_log,
    single_holder,
    unique_keys,
)
from quarterdeck.maintenance.history_checker.model import Invariant

INVARIANTS: Mapping[str, Invariant] = {
    module.NAME: module.check
    for module in (
        event_sequence,
        unique_keys,
        limits,
        single_holder,
        no_stale_completion,
        no_lost_acks,
        refusals_leave_nothing,
        no_action_after_end,
        authority_narrows,
        realtime_order,
        rows_match_log,
        quiescence,
        dependencies,
        resume_from_checkpoint,
    )
}
