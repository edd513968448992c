"""The installed tmux version, and the required one."""

from __future__ import annotations

import re
import shutil
import subprocess

MIN_VERSION = (3, 2)
"""The first version that can set the environment of a new pane and read commands from standard input."""
TIMEOUT_SECONDS = 5.0


def installed_version() -> tuple[tuple[int, int], str] | None:
    """The version numbers and the version text. None if tmux is not installed or reports no version. Blocks."""
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
    """Parse `tmux 3.3a`, or `tmux next-3.5`, a pre-release that counts as 3.5."""
    match = re.search(r"([0-9]+)\.([0-9]+)", text)
    return None if match is None else ((int(match[1]), int(match[2])), text)
