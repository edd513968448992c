"""The fleet example runs in tmux and prints the output shown in docs/examples.md."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.child_processes import minimal_environment
from tests.support.source import ROOT
from tests.support.tmux import needs_tmux

EXAMPLES = ROOT / "examples"
LIMIT = 120.0


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """A short path: the path of a Unix socket may have about 100 characters."""
    directory = Path(tempfile.mkdtemp(prefix="qd-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@needs_tmux
def test_example_fleet_prints_the_documented_output_and_removes_its_directory(short_directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "fleet" / "run.py")],
        env=minimal_environment() | {"TMPDIR": str(short_directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    readme = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    documented = re.search(r"^\$ python examples/fleet/run\.py\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    assert documented is not None
    assert mask_times(done.stdout) == mask_times(documented[1])
    assert not [*short_directory.glob("qd-fleet-*")], "its directory is removed"


def mask_times(text: str) -> str:
    """Mask times, and the number of delivered notices: on a busy machine a broadcast may not wait for all of them."""
    masked = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "NOW", text)
    return re.sub(r"delivered=\d", "delivered=N", masked)
