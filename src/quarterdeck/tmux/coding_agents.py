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
from quarterdeck.tmux.panes import PaneInfo
from quarterdeck.tmux.process_table import SHELLS, Process, ProcessTable

DEFAULT_EXIT_COMMAND = "/exit"
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
    exit: str = DEFAULT_EXIT_COMMAND


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


class CodingAgentError(ValueError):
    """A sentence about a coding agent that cannot be."""


class CodingAgentSettings(Protocol):
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


def merge_coding_agents(settings: Mapping[str, CodingAgentSettings] | None) -> dict[str, CodingAgent]:
    """The usual ones, and what the configuration says over them."""
    agents = dict(DEFAULTS)
    for name, agent_settings in (settings or {}).items():
        agents[name] = _merge(name, agents.get(name), agent_settings)
    return agents


def build_argv(agent: CodingAgent, *, name: str, model: str | None = None, prompt: str | None = None) -> list[str]:
    """The command that begins it."""
    values = {"name": name, "model": model or "", "prompt": prompt or ""}
    template = [*agent.argv, *(agent.model_argv if model else ()), *(agent.prompt_argv if prompt else ())]
    return [_fill_template(part, values) for part in template]


def has_exited(agent: CodingAgent, pane: PaneInfo, processes: ProcessTable) -> bool:
    """Whether a shell is all that this agent has left in its pane. What cannot be told counts as "no": it may be behind
    an editor, suspended, or still begin under a name that nobody has told us."""
    if (root := _pane_process(pane, processes)) is None:
        return False
    session_pids = (process.pid for process in processes.values() if process.session_id == root.pid)
    descendants = [process for process in processes.with_descendants([root.pid, *session_pids]) if not process.is_gone]
    if any(is_agent_process(agent, process) and not looking.is_interactive_shell(process) for process in descendants):
        return False
    return any(looking.is_interactive_shell(process) for process in (root, *processes.foreground_processes(root.pid)))


def find_agent_process(agent: CodingAgent, pane: PaneInfo, processes: ProcessTable) -> Process | None:
    """The agent's process in front in the pane, if it is there and no prompt is."""
    if _pane_process(pane, processes) is None:
        return None
    foreground = processes.foreground_processes(pane.pid)
    if any(
        looking.is_interactive_shell(candidate)
        and (candidate.is_group_leader or looking.reads_terminal(candidate, pane.tty))
        for candidate in foreground
    ):
        return None
    for process in foreground:
        if is_agent_process(agent, process) and looking.reads_terminal(process, pane.tty) is not False:
            return process
    return None


def is_agent_process(agent: CodingAgent, process: Process) -> bool:
    """Whether this process goes by one of the agent's names."""
    return not looking.process_names(process).isdisjoint(agent.processes)


def _pane_process(pane: PaneInfo, processes: ProcessTable) -> Process | None:
    """The pane's own process. One of another parent is somebody else: the pid is of another pid namespace, or was given
    out again."""
    root = processes.get(pane.pid)
    return None if pane.is_dead or root is None or root.parent_pid != pane.server_pid else root


def _merge(name: str, existing: CodingAgent | None, settings: CodingAgentSettings) -> CodingAgent:
    argv = tuple(settings.argv) if settings.argv is not None else existing.argv if existing is not None else ()
    if not argv:
        raise CodingAgentError(f"The coding agent {name!r} has no argv: the command that begins it.")
    base = existing or CodingAgent(name, argv, processes=(argv[0].rpartition("/")[2],))
    agent = replace(
        base,
        argv=argv,
        model_argv=base.model_argv if settings.model_argv is None else tuple(settings.model_argv),
        prompt_argv=base.prompt_argv if settings.prompt_argv is None else tuple(settings.prompt_argv),
        processes=base.processes if settings.processes is None else tuple(settings.processes),
        exit=base.exit if settings.exit is None else settings.exit,
    )
    # A shell by another name would have bodies executed.
    if not agent.processes or not SHELLS.isdisjoint(agent.processes):
        raise CodingAgentError(f"The coding agent {name!r} must be known by processes that are no shells.")
    return agent


def _fill_template(template: str, values: Mapping[str, str]) -> str:
    """In one pass: what a value holds is never taken for a placeholder."""
    text = _PLACEHOLDER.sub(lambda match: _CONTROLS.sub("", values[match[1]]), template)
    # A prompt is text, whatever it begins with. No parser of options takes one for an option that begins with a space.
    is_value = _PLACEHOLDER.match(template) is not None
    return f" {text}" if is_value and text.startswith("-") else text
