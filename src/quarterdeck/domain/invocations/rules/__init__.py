"""The pure part of invocations.

| module   | decides                                                                    |
|----------|----------------------------------------------------------------------------|
| lives    | the states, how a row moves from one to the next, how it is shown            |
| board    | a whole batch of commands, in order of arrival, over what was loaded for it  |
| refusals | the words for no                                                             |
| explaining | why one is as it is                                                        |
| pushing  | what is said to an endpoint that is pushed to, and what its answer means     |
"""

from quarterdeck.domain.invocations.rules.board import Board, Known
from quarterdeck.domain.invocations.rules.explaining import explain
from quarterdeck.domain.invocations.rules.lives import INVOCATION, lease_view, view
from quarterdeck.domain.invocations.rules.refusals import not_found

__all__ = ["INVOCATION", "Board", "Known", "explain", "lease_view", "not_found", "view"]
