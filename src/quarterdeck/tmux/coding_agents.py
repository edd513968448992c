"""Coding agents: how to start each one, recognize it in a pane, and stop it.

A coding agent can be added in the settings file, without code:

    [coding_agents.aider]
    argv = ["aider", "--no-auto-commits"]
    model_argv = ["--model", "{model}"]
    prompt_argv = ["--message", "{prompt}"]
    processes = ["aider"]

Settings for a built-in agent replace only the fields that they contain. In the arguments, `{name}`, `{model}` and
`{prompt}` are replaced in one pass. No shell interprets the arguments, and a value never becomes an option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.process_table import (
    SHELLS,
    Process,
    ProcessTable,
    is_interactive_shell,
    process_names,
    reads_terminal,
)

DEFAULT_EXIT_COMMAND = "/exit"
_PLACEHOLDER = re.compile(r"\{(name|model|prompt)\}")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class CodingAgent:
    name: str
    argv: tuple[str, ...]
    model_argv: tuple[str, ...] = ("--model", "{model}")
    """Added only if a model is requested."""
    prompt_argv: tuple[str, ...] = ("{prompt}",)
    processes: tuple[str, ...] = ()
    """Process names by which the agent is recognized."""
    exit: str = DEFAULT_EXIT_COMMAND
    """Typed into the pane to stop the agent."""


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
    """The settings of a coding agent are not valid."""


class CodingAgentSettings(Protocol):
    """Settings of one coding agent. None means not set."""

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
    """The built-in coding agents, changed and extended by the settings."""
    agents = dict(DEFAULTS)
    for name, agent_settings in (settings or {}).items():
        agents[name] = _merge_settings(name, agents.get(name), agent_settings)
    return agents


def build_argv(agent: CodingAgent, *, name: str, model: str | None = None, prompt: str | None = None) -> list[str]:
    """The command that starts the agent."""
    values = {"name": name, "model": model or "", "prompt": prompt or ""}
    template = [*agent.argv, *(agent.model_argv if model else ()), *(agent.prompt_argv if prompt else ())]
    return [_fill_template(part, values) for part in template]


def has_exited(agent: CodingAgent, pane: PaneInfo, processes: ProcessTable) -> bool:
    """Whether only a shell is left in the pane.

    False if that is uncertain: the agent may be running in an editor, suspended, or starting under another name.
    """
    if (root := _pane_process(pane, processes)) is None:
        return False
    session_pids = (process.pid for process in processes.values() if process.session_id == root.pid)
    descendants = [process for process in processes.with_descendants([root.pid, *session_pids]) if not process.is_gone]
    if any(is_agent_process(agent, process) and not is_interactive_shell(process) for process in descendants):
        return False
    return any(is_interactive_shell(process) for process in (root, *processes.foreground_processes(root.pid)))


def find_agent_process(agent: CodingAgent, pane: PaneInfo, processes: ProcessTable) -> Process | None:
    """The agent's process in the foreground of the pane. None if the agent is not there, or if a shell prompt is."""
    if _pane_process(pane, processes) is None:
        return None
    foreground = processes.foreground_processes(pane.pid)
    if any(
        is_interactive_shell(candidate) and (candidate.is_group_leader or reads_terminal(candidate, pane.tty))
        for candidate in foreground
    ):
        return None
    for process in foreground:
        if is_agent_process(agent, process) and reads_terminal(process, pane.tty) is not False:
            return process
    return None


def is_agent_process(agent: CodingAgent, process: Process) -> bool:
    """Whether the process has one of the agent's process names."""
    return not process_names(process).isdisjoint(agent.processes)


def _pane_process(pane: PaneInfo, processes: ProcessTable) -> Process | None:
    """The process that tmux started in the pane. None if the process with the pane's pid is not a child of the tmux
    server: the pid is from another pid namespace, or was reused."""
    root = processes.get(pane.pid)
    return None if pane.is_dead or root is None or root.parent_pid != pane.server_pid else root


def _merge_settings(name: str, existing: CodingAgent | None, settings: CodingAgentSettings) -> CodingAgent:
    argv = tuple(settings.argv) if settings.argv is not None else existing.argv if existing is not None else ()
    if not argv:
        raise CodingAgentError(f"The coding agent {name!r} has no `argv`, the command that starts it.")
    base = existing or CodingAgent(name, argv, processes=(argv[0].rpartition("/")[2],))
    agent = replace(
        base,
        argv=argv,
        model_argv=base.model_argv if settings.model_argv is None else tuple(settings.model_argv),
        prompt_argv=base.prompt_argv if settings.prompt_argv is None else tuple(settings.prompt_argv),
        processes=base.processes if settings.processes is None else tuple(settings.processes),
        exit=base.exit if settings.exit is None else settings.exit,
    )
    # If a shell counted as the agent, messages would be typed into it and executed.
    if not agent.processes or not SHELLS.isdisjoint(agent.processes):
        raise CodingAgentError(f"`processes` of the coding agent {name!r} must not be empty or name a shell.")
    return agent


def _fill_template(template: str, values: Mapping[str, str]) -> str:
    """Replace in one pass, so that a placeholder inside a value is not replaced."""
    text = _PLACEHOLDER.sub(lambda match: _CONTROL_CHARACTERS.sub("", values[match[1]]), template)
    # A value that starts with a dash must not become an option. An argument that starts with a space is never one.
    is_value = _PLACEHOLDER.match(template) is not None
    return f" {text}" if is_value and text.startswith("-") else text
