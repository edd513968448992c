"""State machines as tables of transitions.

A component declares its transitions once: `{Verb.SUSPEND: {State.ACTIVE: State.SUSPENDED}, …}`. Its rules take the new
state from the table, and `make states` draws the diagrams of `docs/states/` from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)
Verb = TypeVar("Verb", bound=StrEnum)


class StateMachine(Generic[State, Verb]):
    """The transitions of one kind of object, and its initial state."""

    def __init__(
        self, name: str, states: type[State], initial: State, transitions: Mapping[Verb, Mapping[State, State]]
    ) -> None:
        self.name = name
        self.states = states
        self.initial = initial
        self.transitions = transitions

    def next_state(self, verb: Verb, state: State) -> State | None:
        """The state after the verb, or None if the verb is not permitted in this state."""
        return self.transitions[verb].get(state)

    def terminal_states(self) -> tuple[State, ...]:
        """The states without an outgoing transition."""
        sources = {source for target_by_source in self.transitions.values() for source in target_by_source}
        return tuple(state for state in self.states if state not in sources)

    def nonterminal_states(self) -> tuple[State, ...]:
        terminal = self.terminal_states()
        return tuple(state for state in self.states if state not in terminal)

    def diagram(self) -> str:
        """A Mermaid state diagram of the table."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        lines += [
            f"    {source} --> {target}: {verb}"
            for verb, target_by_source in self.transitions.items()
            for source, target in target_by_source.items()
        ]
        lines += [f"    {state} --> [*]" for state in self.terminal_states()]
        return "\n".join(lines)
