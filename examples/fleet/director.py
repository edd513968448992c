"""A script that stands in for a coding agent: a fleet director that has two members count the words in a text.

It runs in a pane and executes the commands that an agent would execute. When the job is done, it signals
`tmux wait-for` and keeps running, so that its pane can be captured.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import termios
import time

TEXT_PARTS = {"ann": "It was the best of times, it was the worst of times,", "ben": "it was the age of wisdom"}


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
    members = {name: create_member(name) for name in TEXT_PARTS}
    for text in collect_messages(members).values():
        print(text)
    for name, part in TEXT_PARTS.items():
        show_and_run_qd("message", "send", "--to", members[name], "--text", f"count: {part}", "--quiet")
    counts = collect_messages(members)
    for name, text in counts.items():
        print(f"{name}: {text}")
    total = sum(int(text.split()[0]) for text in counts.values())
    print(show_and_run_qd("message", "broadcast", "--text", f"{total} words in all, thank you"), flush=True)
    while any(member["unread"] for member in json.loads(run_qd("member", "list", "--activity", "--json"))):
        time.sleep(0.1)
    print("all members have acknowledged the broadcast", flush=True)


def create_member(name: str) -> str:
    """Create a member with its own pane. Returns its id."""
    output = show_and_run_qd(
        "member", "create", "--name", name, "--description", "counts words", "--coding-agent", "clerk"
    )
    print(output, flush=True)
    return output.split()[0]


def collect_messages(members: dict[str, str]) -> dict[str, str]:
    """Wait for one message from each member, and acknowledge it. Returns the texts by name."""
    texts: dict[str, str] = {}
    while len(texts) < len(members):
        messages = json.loads(run_qd("message", "poll", "--wait", "20", "--oldest-first", "--json"))
        for message in messages:
            run_qd("message", "ack", "--task-id", str(message["id"]))
            texts[str(message["from"])] = message["text"]
        if not messages:
            # A member missed a notice. `qd monitor start` would ping it automatically.
            for agent_id in members.values():
                print(show_and_run_qd("member", "ping", "--member-id", agent_id), flush=True)
    return {name: texts[agent_id] for name, agent_id in members.items()}


def show_and_run_qd(*args: str) -> str:
    print("$ qd", shlex.join(args), flush=True)
    return run_qd(*args)


def run_qd(*args: str) -> str:
    # `run.py` has added the directory of `qd` to PATH. Error output is shown in the pane.
    command = ["qd", *args]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    return completed.stdout.rstrip("\n")


def disable_echo() -> None:
    """Turn off the echo of typed lines. The director polls, so notices in its pane need not be shown."""
    if os.isatty(0):
        mode = termios.tcgetattr(0)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, mode)


if __name__ == "__main__":
    main()
