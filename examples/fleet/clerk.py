"""A script that stands in for a coding agent: a fleet member that counts words.

It does what the prompt of a coding agent requires: it polls, reports that it is ready, and waits. A line typed into its
pane is a notice. On a notice it polls, acknowledges each message, does the work and reports the result. Its identity
and the server's address are in the environment variables of the pane.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import termios

DIRECTOR = "1"


def main() -> None:
    name = sys.argv[1]
    disable_echo()
    handle_messages()
    show_and_run_qd("message", "send", "--to", DIRECTOR, "--text", f"{name} is ready", "--quiet")
    for line in iter(sys.stdin.readline, ""):
        print(line.rstrip(), flush=True)
        if line.strip() == "/exit":
            return
        handle_messages()


def handle_messages() -> None:
    """Poll and process all unread messages. Missed or repeated notices do no harm: a notice only triggers a poll."""
    for message in json.loads(show_and_run_qd("message", "poll", "--oldest-first", "--full", "--json")):
        print(show_and_run_qd("message", "ack", "--task-id", str(message["task_id"])), flush=True)
        command, _, text = message["text"].partition(": ")
        if command == "count":
            report = f"{len(text.split())} words"
            show_and_run_qd("message", "send", "--to", str(message["from_agent_id"]), "--text", report, "--quiet")


def show_and_run_qd(*args: str) -> str:
    print("$ qd", shlex.join(args), flush=True)
    # `run.py` has added the directory of `qd` to PATH. Error output is shown in the pane.
    command = ["qd", *args]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    return completed.stdout.rstrip("\n")


def disable_echo() -> None:
    """Turn off the echo of typed lines. `main` prints them when it reads them, so they do not mix with other output."""
    if os.isatty(0):
        mode = termios.tcgetattr(0)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)


if __name__ == "__main__":
    main()
