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
    no_echo()
    try:
        direct()
    except subprocess.CalledProcessError as failed:
        print(f"failed: {failed}", flush=True)
    finally:
        subprocess.run(["tmux", "wait-for", "-S", "finished"], check=True)  # noqa: S607 - the tmux we run in
    sys.stdin.read()


def direct() -> None:
    print(qd("fleet", "create", "--label", "word count", "--coding-agent", "director"))
    os.environ |= {"QD_FLEET_ID": "1", "QD_AGENT_ID": "1"}
    print("$ export QD_FLEET_ID=1 QD_AGENT_ID=1")
    members = {name: create(name) for name in SHARES}
    for text in heard_of(members).values():
        print(text)
    for name, share in SHARES.items():
        qd("message", "send", "--to", members[name], "--text", f"count: {share}", "--quiet")
    counts = heard_of(members)
    for name, text in counts.items():
        print(f"{name}: {text}")
    total = sum(int(text.split()[0]) for text in counts.values())
    print(qd("message", "broadcast", "--text", f"{total} words in all, thank you"), flush=True)
    while any(member["unread"] for member in json.loads(ask("member", "list", "--activity", "--json"))):
        time.sleep(0.1)
    print("everybody has acknowledged it", flush=True)


def create(name: str) -> str:
    """A member in a pane of its own; its id."""
    told = qd("member", "create", "--name", name, "--description", "counts words", "--coding-agent", "clerk")
    print(told, flush=True)
    return told.split()[0]


def heard_of(members: dict[str, str]) -> dict[str, str]:
    """One message of each member, acknowledged as it is taken."""
    said: dict[str, str] = {}
    while len(said) < len(members):
        found = json.loads(ask("message", "poll", "--wait", "20", "--oldest-first", "--json"))
        for message in found:
            ask("message", "ack", "--task-id", str(message["id"]))
            said[str(message["from"])] = message["text"]
        if not found:
            # Somebody has missed a notice. `qd monitor start` would do this by itself.
            for agent_id in members.values():
                print(qd("member", "ping", "--member-id", agent_id), flush=True)
    return {name: said[agent_id] for name, agent_id in members.items()}


def qd(*words: str) -> str:
    """The same, for everybody to see."""
    print("$ qd", shlex.join(words), flush=True)
    return ask(*words)


def ask(*words: str) -> str:
    # `run.py` has put the directory of `qd` on PATH. What it complains of is seen in the pane.
    command = ["qd", *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    return done.stdout.rstrip("\n")


def no_echo() -> None:
    """It polls, and is told of messages by notices as well: those need not be on its screen."""
    if os.isatty(0):
        mode = termios.tcgetattr(0)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)


if __name__ == "__main__":
    main()
