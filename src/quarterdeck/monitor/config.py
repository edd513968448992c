"""The coding agents in the data directory's settings file. Only panes that run one of them may be typed into.

The server reads the same file when it starts. Both reject an invalid file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from quarterdeck.core.errors import Invalid
from quarterdeck.tmux.coding_agents import CodingAgent, merge_coding_agents

SETTINGS_FILE = "quarterdeck.toml"


class _CodingAgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    argv: tuple[str, ...] | None = None
    model_argv: tuple[str, ...] | None = None
    prompt_argv: tuple[str, ...] | None = None
    processes: tuple[str, ...] | None = None
    exit: str | None = None


class _SettingsFile(msgspec.Struct, frozen=True):
    coding_agents: dict[str, _CodingAgentSettings] = {}


def load_coding_agents(data_dir: Path) -> Mapping[str, CodingAgent]:
    file = data_dir / SETTINGS_FILE
    try:
        settings = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _SettingsFile)
        return merge_coding_agents(settings.coding_agents)
    except FileNotFoundError:
        return merge_coding_agents(None)
    except (ValueError, msgspec.ValidationError) as error:
        raise Invalid("invalid_settings", f"{file}: {error}.") from None
