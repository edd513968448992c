"""A fleet in tmux does its small job, and shows what its page says it shows."""

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
    """The path of a socket may have a hundred characters or so."""
    made = Path(tempfile.mkdtemp(prefix="qd-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


@needs_tmux
def test_a_director_and_two_members_finish_a_small_job_together_and_leave_nothing(short_directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "fleet" / "run.py")],
        env=minimal_environment() | {"TMPDIR": str(short_directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"^\$ python examples/fleet/run\.py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert at_any_time(done.stdout) == at_any_time(shown[1])
    assert not [*short_directory.glob("qd-fleet-*")], "its directory is gone"


def at_any_time(text: str) -> str:
    """A machine that has much else to do may take longer to type than a broadcast waits for it."""
    untimed = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "NOW", text)
    return re.sub(r"delivered=\d", "delivered=N", untimed)
