"""What can be done with tasks.

| module   | what                                                                                      |
|----------|-------------------------------------------------------------------------------------------|
| exchange | make, claim, report, change, and what the coordinator asks for: one lane, one batch        |
| loading  | what a batch needs to be decided                                                            |
| writing  | rows and events of what was decided                                                         |
| looking  | show, list                                                                                  |
| ties     | what tasks depend on and what depends on them, as far as it is shown                         |
| settling | what the end of an agent means for what it holds                                            |
| telling  | what an agent that is heard of must know, and what it says                                  |
| awaiting | who of those that wait may be given something                                               |
| spending | costs, and budgets that are spent                                                           |
| budgeting | budgets by hand, and what was spent                                                        |
| logs     | what happened to a task, and what its agents said of it                                     |
| following | waiting for the log of a task to grow                                                      |
| insight  | why a task is as it is, and what it hangs together with                                      |
"""

from quarterdeck.domain.tasks.operations.batch import BatchRunner, ClaimPolls, new_claim_polls, timeouts_of
from quarterdeck.domain.tasks.operations.claim_wakeups import ClaimWakeups
from quarterdeck.domain.tasks.operations.heartbeat_feedback import HeartbeatFeedback
from quarterdeck.domain.tasks.operations.on_agent_lost import LostAgentListener
from quarterdeck.domain.tasks.operations.reads import page, read_tasks

__all__ = [
    "BatchRunner",
    "ClaimPolls",
    "ClaimWakeups",
    "HeartbeatFeedback",
    "LostAgentListener",
    "new_claim_polls",
    "page",
    "read_tasks",
    "timeouts_of",
]
