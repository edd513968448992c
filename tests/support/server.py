"""Real server processes: started as a user starts them, and then stopped, killed or frozen."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from quarterdeck.http.auth import LocalIssuer
from tests.support.child_processes import minimal_environment, signal_on_parent_death, tail
from tests.support.eventually import eventually

START_LIMIT = 30.0
STOP_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server. Without a database URL it keeps a SQLite file in its data directory."""

    data: Path
    database: str | None = None
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int | None = 0
    """A free one, unless the test is about ports: None gives no flag."""

    def command(self, ready_fd: int) -> list[str]:
        command = [*self.command_line("up"), "--ready-fd", str(ready_fd)]
        if self.port is not None:
            command += ["--port", str(self.port)]
        if self.database is not None:
            command += ["--database", self.database]
        return [*command, *self.arguments]

    def command_line(self, *words: str) -> list[str]:
        """Another command on the same data directory."""
        return [sys.executable, "-m", "quarterdeck", *words, "--data", str(self.data)]

    @property
    def database_url(self) -> str:
        """What the server will open, for tests that look at it from the side."""
        return self.database or f"sqlite:///{self.data / 'quarterdeck.db'}"

    def with_environment(self, **variables: str) -> Launch:
        """The same with more in its environment."""
        return replace(self, environment={**self.environment, **variables})


def launch_on(url: str, directory: Path) -> Launch:
    """On a database that is there already: a SQLite file lies in its data directory, PostgreSQL has its URL."""
    if url.startswith("sqlite:///"):
        return Launch(Path(url.removeprefix("sqlite:///")).parent)
    return Launch(directory / "data", database=url)


class ServerProcess:
    """A server that is serving, or was."""

    def __init__(self, launch: Launch, process: subprocess.Popen[bytes], log: Path) -> None:
        self.launch = launch
        self.log = log
        self.url = ""
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    @property
    def issuer(self) -> LocalIssuer:
        """The server's own issuer: what it signs, the server believes."""
        key_file = self.launch.environment.get("QD_SIGNING_KEY")
        return LocalIssuer.open(Path(key_file) if key_file else self.launch.data / "signing-key.pem")

    @property
    def secret_keys(self) -> str:
        """What the server seals secrets with: whoever joins it on its database needs the same."""
        configured = self.launch.environment.get("QD_SECRET_KEYS")
        return configured or (self.launch.data / "secret-keys").read_text().strip()

    @property
    def admin_token(self) -> str:
        return (self.launch.data / "admin-token").read_text().strip()

    @property
    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def client(self, token: str | None = None, timeout: float = 30.0) -> httpx.AsyncClient:
        """An HTTP client that bears the admin token, or another; use it as a context. An empty token bears nothing."""
        bearer = self.admin_token if token is None else token
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        # No pool limit: the races want as many connections as they have callers.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # There is no TLS here; not to verify it saves the loading of the machine's certificates for each client.
        return httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False, verify=False
        )

    def terminate(self) -> None:
        """SIGTERM: the server drains. `wait` tells when it has."""
        self._process.terminate()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns. Also ends a frozen one."""
        if self.is_running:
            self._process.kill()
        self._process.wait(timeout=STOP_LIMIT)

    def freeze(self) -> None:
        """SIGSTOP: the process keeps its connections, locks and leases, and does nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def wait(self, limit: float = STOP_LIMIT) -> int:
        """The exit code, once the process has ended."""
        return await asyncio.to_thread(self._process.wait, limit)

    async def stop(self) -> int:
        self.terminate()
        return await self.wait()


class Servers:
    """Starts servers for one test, remembers them, and leaves none behind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._numbers = itertools.count(1)
        self.started: list[ServerProcess] = []

    async def start(self, launch: Launch | None = None) -> ServerProcess:
        """Returns when the server says `ready`; a server that ends before fails the test with its log."""
        if launch is None:
            launch = Launch(self.directory / f"data-{len(self.started) + 1}")
        server, ready_fd = self._spawn(launch)
        self.started.append(server)
        try:
            line = await asyncio.wait_for(_first_line(ready_fd), START_LIMIT)
        except TimeoutError:
            raise AssertionError(f"no server after {START_LIMIT} s; its log ends:\n{tail(server.log)}") from None
        word, _, url = line.partition(" ")
        assert word == "ready", f"the server ended before it was ready; its log ends:\n{tail(server.log)}"
        server.url = url
        return server

    async def start_expecting_failure(self, launch: Launch) -> ServerProcess:
        """For starts that must be refused: returns when the process has ended."""
        server, ready_fd = self._spawn(launch)
        os.close(ready_fd)
        self.started.append(server)
        await server.wait(START_LIMIT)
        return server

    async def run_command(self, launch: Launch, *words: str) -> ServerProcess:
        """Another command of the program in the launch's environment: returns when it has ended."""
        process = self._run(launch, launch.command_line(*words))
        self.started.append(process)
        await process.wait(START_LIMIT)
        return process

    async def start_command(self, launch: Launch, *words: str, line_prefix: str) -> ServerProcess:
        """Another command that goes on: returns when it has said a line that begins so."""
        process = self._run(launch, launch.command_line(*words))
        self.started.append(process)

        async def has_printed_line() -> bool:
            assert process.is_running, f"it ended before it said {line_prefix!r}; its log ends:\n{tail(process.log)}"
            return any(line.startswith(line_prefix) for line in process.log_text.splitlines())

        await eventually(has_printed_line, f"`{' '.join(words)}` said {line_prefix!r}", START_LIMIT)
        return process

    def close(self) -> None:
        for server in self.started:
            server.kill()

    def logs(self) -> str:
        return "\n".join(f"--- server {server.pid} {server.url}\n{tail(server.log)}" for server in self.started)

    def _spawn(self, launch: Launch) -> tuple[ServerProcess, int]:
        read_end, write_end = os.pipe()
        server = self._run(launch, launch.command(write_end), write_end)
        # Only the child may hold the writing end, or its death would not be seen as the end of the pipe.
        os.close(write_end)
        return server, read_end

    def _run(self, launch: Launch, command: list[str], *pass_fds: int) -> ServerProcess:
        log = self.directory / f"server-{next(self._numbers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**minimal_environment(), **launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=pass_fds,
                start_new_session=True,
                preexec_fn=signal_on_parent_death(signal.SIGKILL),
            )
        return ServerProcess(launch, process, log)


async def _first_line(read_end: int) -> str:
    """The first line written into a pipe, or what there is of it when the writer is gone. Closes the pipe."""
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(read_end, "rb"))
    try:
        return (await reader.readline()).decode().strip()
    finally:
        transport.close()
