"""Which tmux is installed here, and which one it takes."""

from __future__ import annotations

import re
import shutil
import subprocess

MIN_VERSION = (3, 2)
"""Panes are given their environment, and commands are read from standard input."""
TIMEOUT_SECONDS = 5.0


def installed_version() -> tuple[tuple[int, int], str] | None:
    """Its numbers and what it says of itself; None: none is installed, or it does not say. Blocks."""
    program = shutil.which("tmux")
    if program is None:
        return None
    try:
        completed = subprocess.run(  # noqa: S603 - a list of constants, and no shell
            [program, "-V"], stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(completed.stdout.decode(errors="replace").strip())


def parse_version(text: str) -> tuple[tuple[int, int], str] | None:
    """`tmux 3.3a`, and `tmux next-3.5`, which is before 3.5 and has most of it."""
    found = re.search(r"([0-9]+)\.([0-9]+)", text)
    return None if found is None else ((int(found[1]), int(found[2])), text)
