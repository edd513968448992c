"""Stands in for a coding agent: the director of a fleet, which has a text's words counted by two members.

It runs in a pane and types what an agent would type. When the job is done it says so to whoever waits for it
(`tmux wait-for`), and stays, so that its screen can be read.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import termios
import time

SHARES = {"ann": "It was the best of times, it was the worst of times,", "ben": "it was the age of wisdom"}


def main() -> None:
    disable_echo()
    try:
        run_job()
    except subprocess.CalledProcessError as error:
        print(f"failed: {error}", flush=True)
    finally:
        subprocess.run(["tmux", "wait-for", "-S", "finished"], check=True)  # noqa: S607 - the tmux we run in
    sys.stdin.read()


def run_job() -> None:
    print(show_and_run_qd("fleet", "create", "--label", "word count", "--coding-agent", "director"))
    os.environ |= {"QD_FLEET_ID": "1", "QD_AGENT_ID": "1"}
    print("$ export QD_FLEET_ID=1 QD_AGENT_ID=1")
    members = {name: create_member(name) for name in SHARES}
    for text in collect_messages(members).values():
        print(text)
    for name, share in SHARES.items():
        show_and_run_qd("message", "send", "--to", members[name], "--text", f"count: {share}", "--quiet")
    counts = collect_messages(members)
    for name, text in counts.items():
        print(f"{name}: {text}")
    total = sum(int(text.split()[0]) for text in counts.values())
    print(show_and_run_qd("message", "broadcast", "--text", f"{total} words in all, thank you"), flush=True)
    while any(member["unread"] for member in json.loads(run_qd("member", "list", "--activity", "--json"))):
        time.sleep(0.1)
    print("everybody has acknowledged it", flush=True)


def create_member(name: str) -> str:
    """A member in a pane of its own; its id."""
    output = show_and_run_qd(
        "member", "create", "--name", name, "--description", "counts words", "--coding-agent", "clerk"
    )
    print(output, flush=True)
    return output.split()[0]


def collect_messages(members: dict[str, str]) -> dict[str, str]:
    """One message of each member, acknowledged as it is taken."""
    texts: dict[str, str] = {}
    while len(texts) < len(members):
        messages = json.loads(run_qd("message", "poll", "--wait", "20", "--oldest-first", "--json"))
        for message in messages:
            run_qd("message", "ack", "--task-id", str(message["id"]))
            texts[str(message["from"])] = message["text"]
        if not messages:
            # Somebody has missed a notice. `qd monitor start` would do this by itself.
            for agent_id in members.values():
                print(show_and_run_qd("member", "ping", "--member-id", agent_id), flush=True)
    return {name: texts[agent_id] for name, agent_id in members.items()}


def show_and_run_qd(*args: str) -> str:
    """The same, for everybody to see."""
    print("$ qd", shlex.join(args), flush=True)
    return run_qd(*args)


def run_qd(*args: str) -> str:
    # `run.py` has put the directory of `qd` on PATH. What it complains of is seen in the pane.
    command = ["qd", *args]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    return completed.stdout.rstrip("\n")


def disable_echo() -> None:
    """It polls, and is told of messages by notices as well: those need not be on its screen."""
    if os.isatty(0):
        mode = termios.tcgetattr(0)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)


if __name__ == "__main__":
    main()
