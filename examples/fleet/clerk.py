"""Stands in for a coding agent: a member of a fleet that counts words.

It does what a coding agent is told to do: it begins by polling, says that it is ready, and waits. A line that is typed
into its pane is a notice; then it polls, acknowledges each message, does what that asks for, and reports. Who it is and
where the server is it knows from its environment, as everything that is begun in a pane does.
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
    """Whatever was missed, or told of twice, is here or is not: a notice only says when to look."""
    for message in json.loads(show_and_run_qd("message", "poll", "--oldest-first", "--full", "--json")):
        print(show_and_run_qd("message", "ack", "--task-id", str(message["task_id"])), flush=True)
        command, _, text = message["text"].partition(": ")
        if command == "count":
            report = f"{len(text.split())} words"
            show_and_run_qd("message", "send", "--to", str(message["from_agent_id"]), "--text", report, "--quiet")


def show_and_run_qd(*args: str) -> str:
    print("$ qd", shlex.join(args), flush=True)
    # `run.py` has put the directory of `qd` on PATH. What it complains of is seen in the pane.
    command = ["qd", *args]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    return completed.stdout.rstrip("\n")


def disable_echo() -> None:
    """What is typed is shown when it is read, not in the middle of something else."""
    if os.isatty(0):
        mode = termios.tcgetattr(0)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)


if __name__ == "__main__":
    main()
