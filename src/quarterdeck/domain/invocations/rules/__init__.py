"""The pure part of invocations.

| module   | decides                                                                    |
|----------|----------------------------------------------------------------------------|
| lives    | the states, how a row moves from one to the next, how it is shown            |
| board    | a whole batch of commands, in order of arrival, over what was loaded for it  |
| refusals | the words for no                                                             |
| explaining | why one is as it is                                                        |
| pushing  | what is said to an endpoint that is pushed to, and what its answer means     |
"""

from quarterdeck.domain.invocations.rules.decider import BatchDecider, InvocationBatchInput
from quarterdeck.domain.invocations.rules.errors import not_found
from quarterdeck.domain.invocations.rules.explain import explain
from quarterdeck.domain.invocations.rules.states import INVOCATION_STATES, lease_view, view

__all__ = ["INVOCATION_STATES", "BatchDecider", "InvocationBatchInput", "explain", "lease_view", "not_found", "view"]
