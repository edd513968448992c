"""Helpers of the CLI tests: `qd` in a subprocess, a scripted HTTP server and a fake server program."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from quarterdeck.client.data_dir import DataDir
from tests.support.child_processes import minimal_environment
from tests.support.eventually import eventually_sync
from tests.support.source import SRC

RUN_TIMEOUT_SECONDS = 90.0
_PROGRAM = f"""
import sys
sys.path.insert(0, {str(SRC.parent)!r})
from quarterdeck.cli.main import main
sys.exit(main())
"""


class Qd:
    """`qd` with its own data directory and without the settings of this shell."""

    def __init__(self, data: Path, **environment: str) -> None:
        self.data = data
        paths = [str(SRC.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {
            **minimal_environment(),
            "PYTHONPATH": os.pathsep.join(paths),
            "QD_DATA": str(data),
            **environment,
        }

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words, **environment)
        stdout, stderr = process.communicate(timeout=RUN_TIMEOUT_SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(words),
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-P", "-c", _PROGRAM, *words]

    def run(self, *words: str, **environment: str) -> str:
        """Returns the stdout of a command that must succeed."""
        result = self(*words, **environment)
        assert result.returncode == 0, result.stderr
        return result.stdout.rstrip("\n")

    def run_json(self, *words: str, **environment: str) -> Any:
        return json.loads(self.run(*words, "--json", **environment))

    def end_server(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the server of this directory, if one runs, and waits until it is gone."""
        data_dir = DataDir(str(self.data))
        record = data_dir.read_record()
        if record is not None and data_dir.has_running_server():
            os.kill(record.pid, number)
            eventually_sync(lambda: not data_dir.has_running_server(), "the server's lock is free")


class TerminalResult(NamedTuple):
    """The exit code of a command on a terminal, and the terminal's text including the echoed input."""

    code: int
    output: str


def run_on_terminal(qd: Qd, *words: str, typed: str = "", columns: int = 80) -> TerminalResult:
    """Runs a command with a terminal as stdin, stdout and stderr. `typed` is buffered until the command reads it."""
    master_fd, terminal_fd = os.openpty()
    termios.tcsetwinsize(terminal_fd, (24, columns))
    os.write(master_fd, typed.encode())
    environment = {**qd.environment, "TERM": "xterm", "NO_COLOR": "1"}
    process = subprocess.Popen(
        qd.command(words), env=environment, stdin=terminal_fd, stdout=terminal_fd, stderr=terminal_fd
    )
    os.close(terminal_fd)
    output = b""
    try:
        while chunk := os.read(master_fd, 65536):
            output += chunk
    except OSError:
        pass  # Linux raises EIO when the other end of a terminal is closed.
    finally:
        os.close(master_fd)
    return TerminalResult(process.wait(RUN_TIMEOUT_SECONDS), output.decode().replace("\r\n", "\n"))


@contextmanager
def run_qd(data: Path, **environment: str) -> Iterator[Qd]:
    """`qd` with its own data directory. Ends the server that its commands start."""
    program = Qd(data, **environment)
    try:
        yield program
    finally:
        program.end_server()


class ScriptedServer:
    """An HTTP server that answers requests with fixed bytes, in order."""

    def __init__(self, responses: Sequence[bytes]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._responses = list(responses)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        # close() does not wake a thread that blocks in accept(); a connection does.
        self._responses.clear()
        with socket.create_connection(self._listener.getsockname()):
            pass
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        while self._responses:
            connection, _ = self._listener.accept()
            self.connections += 1
            with connection:
                while self._responses and (request := _read_request(connection)):
                    self.requests.append(request)
                    response = self._responses.pop(0)
                    connection.sendall(response)
                    if b"content-length" not in response.lower() and b"chunked" not in response.lower():
                        break


@contextmanager
def run_scripted_server(*responses: bytes) -> Iterator[ScriptedServer]:
    server = ScriptedServer(responses)
    try:
        yield server
    finally:
        server.close()


def http_response(
    status: int, document: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    body = b"" if document is None else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return b""
        data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            missing = int(line.split(b":")[1]) - len(body)
            while missing > 0:
                chunk = connection.recv(65536)
                data, missing = data + chunk, missing - len(chunk)
    return data


FAKE_SERVER = '''
"""A fake server program: takes the lock, listens, writes the record and reports ready."""
import fcntl, json, os, signal, socket, sys

words = sys.argv[1:]
data = words[words.index("--data") + 1]
ready = int(words[words.index("--ready-fd") + 1])
print("started", *words, flush=True)
level = os.environ.get("QD_LOG_LEVEL")
names = sorted(name for name in os.environ if name.startswith("QD_") and name != "QD_LOG_LEVEL")
print("environment", *names, *([] if level is None else [f"QD_LOG_LEVEL={level}"]), flush=True)
lock = os.open(f"{data}/server.lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
if os.environ.get("FAKE_SERVER_MODE") == "fail":
    sys.exit("the database is on fire")
path = os.environ["FAKE_SERVER_SOCKET"]
if os.path.exists(path):
    os.unlink(path)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
signal.signal(signal.SIGTERM, lambda *_: (os.unlink(path), os._exit(0)))
record = {"pid": os.getpid(), "url": "", "socket": path, "database": "sqlite", "version": "0", "started_at": ""}
with open(f"{data}/server.json.new", "w") as file:
    json.dump(record, file)
os.rename(f"{data}/server.json.new", f"{data}/server.json")
os.write(ready, b"ready unix\\n")
os.close(ready)
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}")
    connection.close()
'''


def install_fake_server(directory: Path) -> Path:
    """Returns a folder for PYTHONPATH whose `quarterdeck` package is the fake server."""
    package = directory / "fake-server" / "quarterdeck"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(FAKE_SERVER)
    return package.parent
