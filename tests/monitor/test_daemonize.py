"""`--daemon`: the command learns whether the daemon has started, and the daemon writes only to its own files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAILS_AFTER_START = """
import os, sys
from quarterdeck.core.errors import Conflict
from quarterdeck.monitor.daemonize import start_daemon

def main(report_started):
    report_started()
    for _ in range(8):  # one of these files gets the descriptor number of the pipe
        os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    raise Conflict("taken", "Another monitor has claimed the fleet.")

print(start_daemon(sys.argv[1], main))
"""


def test_problem_after_the_start_is_written_only_to_the_log(tmp_path: Path) -> None:
    log, other_file = tmp_path / "log", tmp_path / "other"
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-c", FAILS_AFTER_START, str(log), str(other_file)]
    started = subprocess.run(command, check=True, capture_output=True, text=True, pass_fds=[write_fd])
    os.close(write_fd)
    assert os.read(read_fd, 1) == b"", "the pipe closes when the daemon exits"
    os.close(read_fd)
    assert int(started.stdout) > 0
    assert log.read_text() == "Error: Another monitor has claimed the fleet.\n"
    assert other_file.read_text() == ""
