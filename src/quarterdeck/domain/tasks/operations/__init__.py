"""Operations on tasks: functions that run in a transaction.

| module              | what it does                                                                       |
|---------------------|------------------------------------------------------------------------------------|
| batch               | runs one batch of the task lane                                                    |
| load                | loads the input of a batch                                                         |
| persist             | writes the rows and events of a batch                                              |
| reads               | reads one task, or a page of tasks; statements for other components                |
| dependency_reads    | reads dependencies and dependents for views                                        |
| claim_wakeups       | wakes waiting claims when tasks become ready                                       |
| on_agent_lost       | aborts the attempts of an agent that ended, restarted or is stale                  |
| heartbeat_feedback  | finds tasks that an agent must stop or that are overdue, and saves its progress    |
| strategies          | reads and sets a zone's strategy, and re-ranks its tasks after a change            |
| log_lines           | writes lines to the logs of tasks                                                  |
| explain             | explains a task's state, reads the dependency tree                                 |
| coordinator_queries | runs the coordinator's queries across zones                                        |
| redis_rows          | reads tasks and agents for the Redis mirror                                        |
"""

from quarterdeck.domain.tasks.operations.batch import BatchRunner, ClaimPolls, new_claim_polls, timeouts_of
from quarterdeck.domain.tasks.operations.claim_wakeups import ClaimWakeups
from quarterdeck.domain.tasks.operations.heartbeat_feedback import HeartbeatFeedback
from quarterdeck.domain.tasks.operations.log_lines import add_log_lines
from quarterdeck.domain.tasks.operations.on_agent_lost import LostAgentListener
from quarterdeck.domain.tasks.operations.reads import list_tasks, load_statement, read_tasks, states_statement

__all__ = [
    "BatchRunner",
    "ClaimPolls",
    "ClaimWakeups",
    "HeartbeatFeedback",
    "LostAgentListener",
    "add_log_lines",
    "list_tasks",
    "load_statement",
    "new_claim_polls",
    "read_tasks",
    "states_statement",
    "timeouts_of",
]
