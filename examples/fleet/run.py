"""A fleet in tmux: a director and two members do a small job together.

All three are scripts that stand in for coding agents, so this needs only tmux. It uses its own data directory with a
server, and its own tmux server with one window; both are removed at the end. `--watch` attaches the terminal to that
window; Ctrl-b d detaches it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
TIMEOUT_SECONDS = 120.0
"""For each command. The complete example takes about 3 s."""


def main() -> int:
    if shutil.which("tmux") is None:
        print("tmux is not installed. Run: apt install tmux, or brew install tmux", file=sys.stderr)
        return 1
    # Also clean up when the terminal is closed or the process is terminated.
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: sys.exit(1))
    # A short name: the path of a Unix socket is limited to about 100 characters.
    home = Path(tempfile.mkdtemp(prefix="qd-fleet-"))
    try:
        return FleetExample(home).run("--watch" in sys.argv[1:])
    finally:
        shutil.rmtree(home, ignore_errors=True)


class FleetExample:
    def __init__(self, home: Path) -> None:
        self.data = home / "data"
        self.socket = str(home / "tmux")
        self.environment = {**clean_environment(), "QD_DATA": str(self.data)}

    def run(self, watch: bool) -> int:
        self.data.mkdir(mode=0o700)
        (self.data / "quarterdeck.toml").write_text(coding_agent_settings(), encoding="utf-8")
        self.environment["QD_FLEET_ID"] = "1"
        try:
            self.run_quietly("qd", "fleet", "list")  # starts the server
            self.start_director()
            if watch:
                self.run_tmux("attach", timeout=None)
            self.run_tmux("wait-for", "finished")
            self.print_panes()
            return 0
        finally:
            self.run_quietly("tmux", "-S", self.socket, "kill-server")
            self.run_quietly("qd", "stop")

    def start_director(self) -> None:
        """Start the director in a window of a new tmux server, as a user starts a coding agent."""
        # Without QD_FLEET_ID: the director creates the fleet.
        environment = {name: value for name, value in self.environment.items() if name != "QD_FLEET_ID"}
        command = [sys.executable, str(HERE / "director.py")]
        size = ["-x", "240", "-y", "60"]
        self.run_tmux(
            "-f", "/dev/null", "new-session", "-d", "-s", "fleet", *size, "--", *command, environment=environment
        )

    def print_panes(self) -> None:
        """Print the members and the contents of their panes, then delete the fleet, which closes the panes."""
        print(self.run_qd("member", "list"))
        for member in json.loads(self.run_qd("member", "list", "--json")):
            print(f"\n--- {member['name']} ---")
            print(self.run_qd("member", "capture", "--member-id", str(member["agent_id"])))
        print()
        print(self.run_qd("fleet", "delete", "1"))

    def run_qd(self, *args: str) -> str:
        command = ["qd", *args]
        completed = subprocess.run(  # noqa: S603 - no shell
            command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS
        )
        return completed.stdout.rstrip()

    def run_tmux(
        self, *args: str, environment: Mapping[str, str] | None = None, timeout: float | None = TIMEOUT_SECONDS
    ) -> None:
        command = ["tmux", "-S", self.socket, *args]
        subprocess.run(command, env=environment or self.environment, check=True, timeout=timeout)  # noqa: S603 - no shell

    def run_quietly(self, *command: str) -> None:
        subprocess.run(  # noqa: S603 - no shell
            command, env=self.environment, check=False, capture_output=True, timeout=TIMEOUT_SECONDS
        )


def coding_agent_settings() -> str:
    """Settings that configure both scripts as coding agents. A list of strings has the same syntax in TOML and JSON."""
    director, clerk = ([sys.executable, str(HERE / f"{name}.py")] for name in ("director", "clerk"))
    return f"""
[coding_agents.director]
argv = {json.dumps(director)}
processes = ["director.py"]

[coding_agents.clerk]
argv = {json.dumps([*clerk, "{name}"])}
processes = ["clerk.py"]
"""


def clean_environment() -> dict[str, str]:
    """The environment without variables for another server or tmux. `qd` is in the same directory as Python."""
    excluded_prefixes = ("QD_", "TMUX", "DATABASE_URL")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(excluded_prefixes)}
    return variables | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])}


if __name__ == "__main__":
    sys.exit(main())
