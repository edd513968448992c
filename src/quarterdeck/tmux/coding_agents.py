"""Coding agents: how each is begun, how it is known in a pane, and how it is told to leave.

They are configuration, so a new one needs no code:

    [coding_agents.aider]
    argv = ["aider", "--no-auto-commits"]
    model_argv = ["--model", "{model}"]
    prompt_argv = ["--message", "{prompt}"]
    processes = ["aider"]

What is said for a name that is known replaces only what it says. `{name}`, `{model}` and `{prompt}` are put into the
arguments as they are, once: no shell and nothing else reads them, and a value never becomes an option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from quarterdeck.tmux import process_table as looking
from quarterdeck.tmux.panes import PaneSeen
from quarterdeck.tmux.process_table import SHELLS, Process, Processes

EXIT = "/exit"
_PLACEHOLDER = re.compile(r"\{(name|model|prompt)\}")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class CodingAgent:
    name: str
    argv: tuple[str, ...]
    model_argv: tuple[str, ...] = ("--model", "{model}")
    """Only if a model was asked for."""
    prompt_argv: tuple[str, ...] = ("{prompt}",)
    processes: tuple[str, ...] = ()
    """Names of processes that mean: the agent runs here."""
    exit: str = EXIT


DEFAULTS: Mapping[str, CodingAgent] = {
    agent.name: agent
    for agent in (
        CodingAgent("claude", ("claude", "--permission-mode", "dontAsk", "--name", "{name}"), processes=("claude",)),
        CodingAgent(
            "codex", ("codex", "--ask-for-approval", "never", "--sandbox", "workspace-write"), processes=("codex",)
        ),
        CodingAgent(
            "opencode", ("opencode", "--agent", "build"), prompt_argv=("--prompt", "{prompt}"), processes=("opencode",)
        ),
    )
}


class CodingError(ValueError):
    """A sentence about a coding agent that cannot be."""


class Told(Protocol):
    """What the configuration says of one; None where it says nothing."""

    @property
    def argv(self) -> Sequence[str] | None: ...
    @property
    def model_argv(self) -> Sequence[str] | None: ...
    @property
    def prompt_argv(self) -> Sequence[str] | None: ...
    @property
    def processes(self) -> Sequence[str] | None: ...
    @property
    def exit(self) -> str | None: ...


def coding_agents_of(told: Mapping[str, Told] | None) -> dict[str, CodingAgent]:
    """The usual ones, and what the configuration says over them."""
    known = dict(DEFAULTS)
    for name, each in (told or {}).items():
        known[name] = _merged(name, known.get(name), each)
    return known


def argv_of(agent: CodingAgent, *, name: str, model: str | None = None, prompt: str | None = None) -> list[str]:
    """The command that begins it."""
    values = {"name": name, "model": model or "", "prompt": prompt or ""}
    template = [*agent.argv, *(agent.model_argv if model else ()), *(agent.prompt_argv if prompt else ())]
    return [_filled(each, values) for each in template]


def has_left(agent: CodingAgent, seen: PaneSeen, now: Processes) -> bool:
    """Whether a shell is all that this agent has left in its pane. What cannot be told counts as "no": it may be behind
    an editor, suspended, or still begin under a name that nobody has told us."""
    if (root := _root(seen, now)) is None:
        return False
    of_session = (each.pid for each in now.values() if each.session == root.pid)
    family = [each for each in now.below([root.pid, *of_session]) if not each.is_gone]
    if any(is_called(agent, each) and not looking.is_prompt(each) for each in family):
        return False
    return any(looking.is_prompt(each) for each in (root, *now.in_front_of(root.pid)))


def found_in(agent: CodingAgent, seen: PaneSeen, now: Processes) -> Process | None:
    """The agent's process in front in the pane, if it is there and no prompt is."""
    if _root(seen, now) is None:
        return None
    front = now.in_front_of(seen.pid)
    if any(looking.is_prompt(each) and (each.leads or looking.reads(each, seen.tty)) for each in front):
        return None
    for each in front:
        if is_called(agent, each) and looking.reads(each, seen.tty) is not False:
            return each
    return None


def is_called(agent: CodingAgent, process: Process) -> bool:
    """Whether this process goes by one of the agent's names."""
    return not looking.names_of(process).isdisjoint(agent.processes)


def _root(seen: PaneSeen, now: Processes) -> Process | None:
    """The pane's own process. One of another parent is somebody else: the pid is of another pid namespace, or was given
    out again."""
    root = now.get(seen.pid)
    return None if seen.is_dead or root is None or root.parent != seen.server_pid else root


def _merged(name: str, known: CodingAgent | None, told: Told) -> CodingAgent:
    argv = tuple(told.argv) if told.argv is not None else known.argv if known is not None else ()
    if not argv:
        raise CodingError(f"The coding agent {name!r} has no argv: the command that begins it.")
    base = known or CodingAgent(name, argv, processes=(argv[0].rpartition("/")[2],))
    made = replace(
        base,
        argv=argv,
        model_argv=base.model_argv if told.model_argv is None else tuple(told.model_argv),
        prompt_argv=base.prompt_argv if told.prompt_argv is None else tuple(told.prompt_argv),
        processes=base.processes if told.processes is None else tuple(told.processes),
        exit=base.exit if told.exit is None else told.exit,
    )
    # A shell by another name would have bodies executed.
    if not made.processes or not SHELLS.isdisjoint(made.processes):
        raise CodingError(f"The coding agent {name!r} must be known by processes that are no shells.")
    return made


def _filled(template: str, values: Mapping[str, str]) -> str:
    """In one pass: what a value holds is never taken for a placeholder."""
    filled = _PLACEHOLDER.sub(lambda match: _CONTROLS.sub("", values[match[1]]), template)
    # A prompt is text, whatever it begins with. No parser of options takes one for an option that begins with a space.
    is_value = _PLACEHOLDER.match(template) is not None
    return f" {filled}" if is_value and filled.startswith("-") else filled
