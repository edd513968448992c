"""Runs one program with a list of arguments, without a shell, bounded in time and output.

Each run has its own thread. The server's event loop could start programs itself, but its fork blocks the loop for some
milliseconds. Typing into 46 panes was four times slower that way, and requests waited for most of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

OUTPUT_MAX_BYTES = 8 * 1024 * 1024
KILL_WAIT_SECONDS = 1.0
CHUNK_SIZE = 64 * 1024


class ProgramError(Exception):
    """A program could not be started, timed out, or wrote too much. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


async def run(
    argv: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", timeout_seconds: float = 5.0
) -> ProgramResult:
    """Run a program with `stdin` as its standard input. If this call is canceled, the program is killed."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ProgramResult] = loop.create_future()
    program_run = _ProgramRun(argv, environment, stdin, timeout_seconds)

    def deliver(result: ProgramResult | ProgramError) -> None:
        if future.done():
            return
        if isinstance(result, ProgramError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def run_in_thread() -> None:
        result = program_run.run()
        # The event loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, result)

    # A daemon thread, so that this process can exit without waiting for it. The timeout ends the program.
    threading.Thread(target=run_in_thread, name=argv[0], daemon=True).start()
    try:
        return await future
    finally:
        program_run.cancel()


@dataclass(slots=True)
class _ProgramRun:
    argv: Sequence[str]
    environment: Mapping[str, str]
    stdin: bytes
    timeout_seconds: float
    is_canceled: bool = False
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Serializes the start of the process and its cancellation."""

    def run(self) -> ProgramResult | ProgramError:
        deadline = time.monotonic() + self.timeout_seconds
        try:
            process = self._start()
        except (OSError, ValueError) as error:
            # ValueError: a NUL in an argument.
            return ProgramError(f"{self.argv[0]} cannot be started ({error})")
        try:
            output = _communicate(process, self.stdin, deadline)
            if sum(map(len, output)) > OUTPUT_MAX_BYTES:
                return ProgramError(f"{self.argv[0]} wrote more than {OUTPUT_MAX_BYTES} bytes")
            return ProgramResult(process.wait(max(0.0, deadline - time.monotonic())), *output)
        except (TimeoutError, subprocess.TimeoutExpired):
            return ProgramError(f"{self.argv[0]} did not finish within {self.timeout_seconds:g} s")
        finally:
            _kill(process)

    def _start(self) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.is_canceled:
                raise OSError("canceled")
            self.process = subprocess.Popen(  # noqa: S603 - a list, and never a shell
                [*self.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd="/",
                env=dict(self.environment),
                # Signals to our own process group, for example from a terminal, must not reach the program.
                start_new_session=True,
            )
            return self.process

    def cancel(self) -> None:
        with self.lock:
            self.is_canceled = True
            if self.process is not None:
                # `kill` first checks whether the process was reaped, so it never signals a reused pid.
                self.process.kill()


def _communicate(process: subprocess.Popen[bytes], stdin: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Write and read concurrently, because otherwise both sides could block on a full pipe."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    out, err, unsent = bytearray(), bytearray(), memoryview(stdin)
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map() and len(out) + len(err) <= OUTPUT_MAX_BYTES:
            if (remaining_seconds := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(remaining_seconds):
                if key.data is None:
                    unsent = _write_stdin(key.fd, unsent)
                    is_closed = not unsent
                else:
                    data = os.read(key.fd, CHUNK_SIZE)
                    key.data.extend(data)
                    is_closed = not data
                if is_closed:
                    selector.unregister(key.fileobj)
                if is_closed and key.data is None:
                    # The program now reads the end of its input.
                    process.stdin.close()
    return bytes(out), bytes(err)


def _write_stdin(pipe: int, unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(pipe, unsent) :] if unsent else unsent
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        # The program exited without reading its input. Its output has the reason.
        return unsent[:0]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill without waiting for the pipes to close: tmux passes them to its server, and a hung server keeps them."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
