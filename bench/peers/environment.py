"""The peers' environments: one each, under `.bench/peers`, made once from PyPI with the versions that are asked for.

What is there is used again while it was made for the same requirements by the same Python; so a machine without a
network measures the peers it already has. A peer that needs a newer Python than this one gets the first that is found:
on PATH, or among those that pyenv keeps. Where there is none, it is not measured.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.plan import ROOT
from tests.support.children import plain_environment

REQUIREMENTS = Path(__file__).parent / "requirements"
ENVIRONMENTS = ROOT / ".bench" / "peers"
MADE = "made-for.txt"
MAKE_SECONDS = 600.0
LEAST = {"cafleet": (3, 12)}
"""The Python that a peer needs, where it is not content with ours."""
NEWER = ("python3.12", "python3.13", "python3.14")
WORDS = 400
"""Of what went wrong, the last so many characters."""


class Unavailable(Exception):
    """A sentence about a peer that cannot be measured."""


def python_of(peer: str, environments: Path = ENVIRONMENTS) -> Path:
    """The interpreter that has this peer; it is made if need be."""
    base, version = _base(LEAST.get(peer, (0, 0)))
    wanted = f"{version}\n{(REQUIREMENTS / f'{peer}.txt').read_text(encoding='utf-8')}"
    home = environments / peer
    python, made = home / "bin" / "python", home / MADE
    if not (made.exists() and made.read_text(encoding="utf-8") == wanted):
        print(f"making the environment of {peer} …", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        _run([base, "-m", "venv", str(home)])
        _run([str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / f"{peer}.txt")])
        # Last: an environment that was left half made is made anew.
        made.write_text(wanted, encoding="utf-8")
    return python


def version_of(peer: str) -> str:
    """As it is asked for."""
    lines = (REQUIREMENTS / f"{peer}.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{peer}=="))


def _base(least: tuple[int, int]) -> tuple[str, str]:
    """A Python that is new enough and can make environments, and its version."""
    if sys.version_info >= least:
        return sys.executable, sys.version
    for python in _others():
        told = "import ensurepip, sys, venv; print(sys.version)"
        try:
            version = _run([python, "-c", told]).strip()
        except Unavailable:
            # A name that leads nowhere (pyenv leaves such), or half a Python.
            continue
        number = re.match(r"(\d+)\.(\d+)", version)
        if number and (int(number[1]), int(number[2])) >= least:
            return python, version
    raise Unavailable(f"it needs Python {least[0]}.{least[1]}, and there is none on PATH or in pyenv")


def _others() -> Iterator[str]:
    yield from filter(None, map(shutil.which, NEWER))
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(pyenv.glob("versions/*/bin/python")))


def _run(command: list[str]) -> str:
    """What it says. A peer whose command fails is not measured."""
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
    return done.stdout


def _environment() -> dict[str, str]:
    """With whatever pip is told on this machine about where packages are."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**plain_environment(), **kept}
