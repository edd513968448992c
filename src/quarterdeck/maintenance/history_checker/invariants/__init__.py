"""The invariants, one module each. Each is a pure function from the evidence to violations.

| name          | module                 | states                                                                     |
|---------------|------------------------|----------------------------------------------------------------------------|
| story         | event_sequence         | the events form a valid sequence: no gaps, only allowed transitions        |
| one-key       | unique_keys            | a key never has two live sessions, two invocations or two tasks            |
| limits        | limits                 | no limit is exceeded at any position                                       |
| one-holder    | single_holder          | every attempt has one holder                                               |
| stale         | no_stale_completion    | no completion with the token of an ended attempt is accepted               |
| acknowledged  | no_lost_acks           | no acknowledged change is lost                                             |
| refused       | refusals_leave_nothing | a refused request stores nothing                                           |
| after-the-end | no_action_after_end    | an ended session or agent does nothing                                     |
| narrowing     | authority_narrows      | a delegation never exceeds its parent, and delegations form no cycle       |
| order         | realtime_order         | a call that starts after a response has a later position in the event log  |
| agreement     | rows_match_log         | the rows agree with the event log, even for calls with an unknown outcome  |
| rest          | quiescence             | nothing is left unfinished                                                 |
| dependencies  | dependencies           | a task starts only after its dependencies                                  |
| resumed       | resume_from_checkpoint | an attempt of a task gets the last saved checkpoint                        |

None of them uses the components' own rules. Each reads the event log separately, which takes more time but less memory,
and lets a reader understand each invariant on its own.
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
