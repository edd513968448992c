"""One call of a program: its arguments are a list, and no shell ever sees them; its time and its output are bounded.

Each has a thread of its own for as long as it takes. Loops can start programs too, and the one that serves does it by a
fork that stops everything else for some milliseconds: with forty-six panes to type into, that was four times as slow,
and its neighbours waited for most of a second.
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

OUTPUT_MAX = 8 * 1024 * 1024
KILL_WAIT_SECONDS = 1.0
CHUNK_SIZE = 64 * 1024


class ProgramError(Exception):
    """A program that could not be run to its end. The sentence says why."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


async def run(
    argv: Sequence[str], environment: Mapping[str, str], stdin: bytes = b"", seconds: float = 5.0
) -> ProgramResult:
    """`said` goes to its standard input. It does not outlast this, however that ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[ProgramResult] = loop.create_future()
    program_run = _ProgramRun(argv, environment, stdin, seconds)

    def deliver(result: ProgramResult | ProgramError) -> None:
        if future.done():
            return
        if isinstance(result, ProgramError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def run_in_thread() -> None:
        result = program_run.run()
        # A loop that has ended waits for nobody.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver, result)

    # Nobody waits for it at the end of the process, either: what it has begun is ended by its time.
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
    seconds: float
    is_canceled: bool = False
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Between whoever begins it and whoever does not want it any more."""

    def run(self) -> ProgramResult | ProgramError:
        deadline = time.monotonic() + self.seconds
        try:
            process = self._start()
        except (OSError, ValueError) as error:
            # ValueError: a NUL in an argument.
            return ProgramError(f"{self.argv[0]} cannot be started ({error})")
        try:
            output = _communicate(process, self.stdin, deadline)
            if sum(map(len, output)) > OUTPUT_MAX:
                return ProgramError(f"it said more than {OUTPUT_MAX} bytes")
            return ProgramResult(process.wait(max(0.0, deadline - time.monotonic())), *output)
        except (TimeoutError, subprocess.TimeoutExpired):
            return ProgramError(f"{self.argv[0]} did not answer within {self.seconds:g} s")
        finally:
            _kill(process)

    def _start(self) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.is_canceled:
                raise OSError("nobody wants it any more")
            self.process = subprocess.Popen(  # noqa: S603 - a list, and never a shell
                [*self.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd="/",
                env=dict(self.environment),
                # What is sent to our own group, from a terminal say, is not meant for it.
                start_new_session=True,
            )
            return self.process

    def cancel(self) -> None:
        with self.lock:
            self.is_canceled = True
            if self.process is not None:
                # Asks first whether it was waited for: a pid that is somebody else's by now is left alone.
                self.process.kill()


def _communicate(process: subprocess.Popen[bytes], stdin: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Says it while hearing: one after the other would do for what is short, and for what is long each would wait."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    out, err, unsent = bytearray(), bytearray(), memoryview(stdin)
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map() and len(out) + len(err) <= OUTPUT_MAX:
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
                    # By that it knows that it was told everything.
                    process.stdin.close()
    return bytes(out), bytes(err)


def _write_stdin(pipe: int, unsent: memoryview) -> memoryview:
    try:
        return unsent[os.write(pipe, unsent) :] if unsent else unsent
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        # It has ended without having listened: its answer says why.
        return unsent[:0]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Without waiting for its pipes to close: tmux hands them to its server, and a server that is stuck keeps them."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_WAIT_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
