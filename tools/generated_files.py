"""Writes the files that a generator has made, or checks that they are up to date."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def write_or_check(generated: Mapping[Path, str]) -> int:
    """Write the files that differ. With `--check` only name them; the exit code is then 1 if there are any."""
    outdated = [
        path for path, text in generated.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in sys.argv:
        sys.stdout.writelines(f"{path.name} is out of date. Run `make sdk`.\n" for path in outdated)
        return 1 if outdated else 0
    for path in outdated:
        path.write_text(generated[path], encoding="utf-8")
    return 0
