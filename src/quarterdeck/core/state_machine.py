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


class Machine(Generic[State, Verb]):
    """The arrows of one noun, its first state, and what follows from them."""

    def __init__(
        self, name: str, states: type[State], start: State, moves: Mapping[Verb, Mapping[State, State]]
    ) -> None:
        self.name = name
        self.states = states
        self.start = start
        self.moves = moves

    def target(self, verb: Verb, state: State) -> State | None:
        """Where the verb leads from this state, or None: the move is refused."""
        return self.moves[verb].get(state)

    def sources(self, verb: Verb) -> tuple[State, ...]:
        """The states a verb may leave: the guard of its statement."""
        return tuple(self.moves[verb])

    def terminal(self) -> tuple[State, ...]:
        """States that no arrow leaves. Never listed by hand a second time."""
        left = {source for arrows in self.moves.values() for source in arrows}
        return tuple(state for state in self.states if state not in left)

    def live(self) -> tuple[State, ...]:
        ended = self.terminal()
        return tuple(state for state in self.states if state not in ended)

    def diagram(self) -> str:
        """A Mermaid state diagram of the table."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.start}"]
        lines += [
            f"    {source} --> {target}: {verb}"
            for verb, arrows in self.moves.items()
            for source, target in arrows.items()
        ]
        lines += [f"    {state} --> [*]" for state in self.terminal()]
        return "\n".join(lines)
