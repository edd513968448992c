"""The peers' environments: one each, under `.bench/peers`, made once from PyPI with the versions that are asked for.

What is there is used again while it was made for the same requirements by the same Python; so a machine without a
network measures the peers it already has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.plan import ROOT
from tests.support.children import plain_environment

REQUIREMENTS = Path(__file__).parent / "requirements"
ENVIRONMENTS = ROOT / ".bench" / "peers"
MADE = "made-for.txt"
MAKE_SECONDS = 600.0
WORDS = 400
"""Of what went wrong, the last so many characters."""


class Unavailable(Exception):
    """A sentence about a peer that cannot be measured."""


def python_of(peer: str, environments: Path = ENVIRONMENTS) -> Path:
    """The interpreter that has this peer; it is made if need be."""
    wanted = f"{sys.version}\n{(REQUIREMENTS / f'{peer}.txt').read_text(encoding='utf-8')}"
    home = environments / peer
    python, made = home / "bin" / "python", home / MADE
    if not (made.exists() and made.read_text(encoding="utf-8") == wanted):
        print(f"making the environment of {peer} …", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        _run(peer, [sys.executable, "-m", "venv", str(home)])
        _run(peer, [str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / f"{peer}.txt")])
        # Last: an environment that was left half made is made anew.
        made.write_text(wanted, encoding="utf-8")
    return python


def version_of(peer: str) -> str:
    """As it is asked for."""
    lines = (REQUIREMENTS / f"{peer}.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{peer}=="))


def _run(peer: str, command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAKE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as wrong:
        raise Unavailable(f"its environment cannot be made: {wrong}") from wrong
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-WORDS:]
        raise Unavailable(f"its environment cannot be made: {' '.join(said.split())}")


def _environment() -> dict[str, str]:
    """With whatever pip is told on this machine about where packages are."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**plain_environment(), **kept}
