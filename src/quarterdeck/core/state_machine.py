"""State machines as data.

A room declares its arrows once, `MOVES = {Verb.SUSPEND: {State.ACTIVE: State.SUSPENDED}, …}`. A
statement names the states it may leave, the docs draw the diagram from the table, and a test walks every
state × verb pair of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)
Verb = TypeVar("Verb", bound=StrEnum)


class StateMachine(Generic[State, Verb]):
    """The arrows of one noun, its first state, and what follows from them."""

    def __init__(
        self, name: str, states: type[State], initial: State, transitions: Mapping[Verb, Mapping[State, State]]
    ) -> None:
        self.name = name
        self.states = states
        self.initial = initial
        self.transitions = transitions

    def next_state(self, verb: Verb, state: State) -> State | None:
        """Where the verb leads from this state, or None: the move is refused."""
        return self.transitions[verb].get(state)

    def source_states(self, verb: Verb) -> tuple[State, ...]:
        """The states a verb may leave: the guard of its statement."""
        return tuple(self.transitions[verb])

    def terminal_states(self) -> tuple[State, ...]:
        """States that no arrow leaves. Never listed by hand a second time."""
        sources = {source for targets in self.transitions.values() for source in targets}
        return tuple(state for state in self.states if state not in sources)

    def live_states(self) -> tuple[State, ...]:
        terminal = self.terminal_states()
        return tuple(state for state in self.states if state not in terminal)

    def diagram(self) -> str:
        """A Mermaid state diagram of the table."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        lines += [
            f"    {source} --> {target}: {verb}"
            for verb, targets in self.transitions.items()
            for source, target in targets.items()
        ]
        lines += [f"    {state} --> [*]" for state in self.terminal_states()]
        return "\n".join(lines)
