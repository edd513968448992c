"""The virtual environments of the peers, one each in `.bench/peers`, created from PyPI with pinned versions.

An environment is reused while its requirements and Python are the same, so a machine without a network can measure the
peers it already has. A peer that needs a newer Python than this one gets the first suitable one on PATH or in pyenv.
If there is none, the peer is not measured.
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
from tests.support.child_processes import minimal_environment

REQUIREMENTS = Path(__file__).parent / "requirements"
ENVIRONMENTS = ROOT / ".bench" / "peers"
STAMP_FILE = "made-for.txt"
INSTALL_TIMEOUT_SECONDS = 600.0
MIN_PYTHON = {"cafleet": (3, 12)}
"""The minimum Python of peers that may need a newer one than ours."""
PYTHON_NAMES = ("python3.12", "python3.13", "python3.14")
ERROR_CHARS = 400
"""How much of the end of an error output is shown."""


class PeerUnavailable(Exception):
    """A peer cannot be measured. The text is the reason."""


def ensure_python(peer: str, environments: Path = ENVIRONMENTS) -> Path:
    """The Python interpreter of the peer's environment, which is created if necessary."""
    base, version = _find_python(MIN_PYTHON.get(peer, (0, 0)))
    expected = f"{version}\n{(REQUIREMENTS / f'{peer}.txt').read_text(encoding='utf-8')}"
    home = environments / peer
    python, stamp = home / "bin" / "python", home / STAMP_FILE
    if not (stamp.exists() and stamp.read_text(encoding="utf-8") == expected):
        print(f"creating the environment of {peer} …", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        _run([base, "-m", "venv", str(home)])
        _run([str(python), "-m", "pip", "install", "-q", "-r", str(REQUIREMENTS / f"{peer}.txt")])
        # Written last, so that an incomplete environment is created again.
        stamp.write_text(expected, encoding="utf-8")
    return python


def pinned_version(peer: str) -> str:
    lines = (REQUIREMENTS / f"{peer}.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{peer}=="))


def _find_python(minimum: tuple[int, int]) -> tuple[str, str]:
    """A Python that is new enough and can create virtual environments, and its version."""
    if sys.version_info >= minimum:
        return sys.executable, sys.version
    for python in _list_pythons():
        script = "import ensurepip, sys, venv; print(sys.version)"
        try:
            version = _run([python, "-c", script]).strip()
        except PeerUnavailable:
            # A dangling shim of pyenv, or a Python without venv.
            continue
        number = re.match(r"(\d+)\.(\d+)", version)
        if number and (int(number[1]), int(number[2])) >= minimum:
            return python, version
    raise PeerUnavailable(f"it needs Python {minimum[0]}.{minimum[1]}, which is neither on PATH nor in pyenv")


def _list_pythons() -> Iterator[str]:
    yield from filter(None, map(shutil.which, PYTHON_NAMES))
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(pyenv.glob("versions/*/bin/python")))


def _run(command: list[str]) -> str:
    """The output of a command. Raises `PeerUnavailable` if it fails."""
    try:
        completed = subprocess.run(
            command,
            env=_pip_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerUnavailable(f"its environment could not be created: {error}") from error
    if completed.returncode:
        message = (completed.stderr or completed.stdout).strip()[-ERROR_CHARS:]
        raise PeerUnavailable(f"its environment could not be created: {' '.join(message.split())}")
    return completed.stdout


def _pip_environment() -> dict[str, str]:
    """The minimal environment with the `PIP_` variables of this machine, such as its package index."""
    pip_variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    return {**minimal_environment(), **pip_variables}
