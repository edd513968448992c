"""The coding agents that the data directory's settings name: by them it is known what may be typed to.

The server reads the same file when it starts. What it says wrongly the server refuses, and so does this.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from quarterdeck.core.errors import Invalid
from quarterdeck.tmux.coding_agents import CodingAgent, coding_agents_of

FILE = "quarterdeck.toml"


class _Said(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    argv: tuple[str, ...] | None = None
    model_argv: tuple[str, ...] | None = None
    prompt_argv: tuple[str, ...] | None = None
    processes: tuple[str, ...] | None = None
    exit: str | None = None


class _File(msgspec.Struct, frozen=True):
    coding_agents: dict[str, _Said] = {}


def coding_agents(data: Path) -> Mapping[str, CodingAgent]:
    file = data / FILE
    try:
        said = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8")), _File)
        return coding_agents_of(said.coding_agents)
    except FileNotFoundError:
        return coding_agents_of(None)
    except (ValueError, msgspec.ValidationError) as wrong:
        raise Invalid("invalid_settings", f"{file}: {wrong}.") from None
