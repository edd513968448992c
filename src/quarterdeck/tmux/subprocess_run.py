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
KILLED_SECONDS = 1.0
CHUNK = 64 * 1024


class ProgramError(Exception):
    """A program that could not be run to its end. The sentence says why."""


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: bytes
    err: bytes


async def run(argv: Sequence[str], environment: Mapping[str, str], said: bytes = b"", seconds: float = 5.0) -> Ran:
    """`said` goes to its standard input. It does not outlast this, however that ends."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[Ran] = loop.create_future()
    call = _Call(argv, environment, said, seconds)

    def tell(ran: Ran | ProgramError) -> None:
        if over.done():
            return
        if isinstance(ran, ProgramError):
            over.set_exception(ran)
        else:
            over.set_result(ran)

    def work() -> None:
        ran = call.run()
        # A loop that has ended waits for nobody.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, ran)

    # Nobody waits for it at the end of the process, either: what it has begun is ended by its time.
    threading.Thread(target=work, name=argv[0], daemon=True).start()
    try:
        return await over
    finally:
        call.end()


@dataclass(slots=True)
class _Call:
    argv: Sequence[str]
    environment: Mapping[str, str]
    said: bytes
    seconds: float
    is_unwanted: bool = False
    process: subprocess.Popen[bytes] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Between whoever begins it and whoever does not want it any more."""

    def run(self) -> Ran | ProgramError:
        until = time.monotonic() + self.seconds
        try:
            process = self._begin()
        except (OSError, ValueError) as error:
            # ValueError: a NUL in an argument.
            return ProgramError(f"{self.argv[0]} cannot be started ({error})")
        try:
            heard = _talk(process, self.said, until)
            if sum(map(len, heard)) > OUTPUT_MAX:
                return ProgramError(f"it said more than {OUTPUT_MAX} bytes")
            return Ran(process.wait(max(0.0, until - time.monotonic())), *heard)
        except (TimeoutError, subprocess.TimeoutExpired):
            return ProgramError(f"{self.argv[0]} did not answer within {self.seconds:g} s")
        finally:
            _end(process)

    def _begin(self) -> subprocess.Popen[bytes]:
        with self.lock:
            if self.is_unwanted:
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

    def end(self) -> None:
        with self.lock:
            self.is_unwanted = True
            if self.process is not None:
                # Asks first whether it was waited for: a pid that is somebody else's by now is left alone.
                self.process.kill()


def _talk(process: subprocess.Popen[bytes], said: bytes, until: float) -> tuple[bytes, bytes]:
    """Says it while hearing: one after the other would do for what is short, and for what is long each would wait."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    out, err, left = bytearray(), bytearray(), memoryview(said)
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as waits:
        waits.register(process.stdout, selectors.EVENT_READ, out)
        waits.register(process.stderr, selectors.EVENT_READ, err)
        waits.register(process.stdin, selectors.EVENT_WRITE)
        while waits.get_map() and len(out) + len(err) <= OUTPUT_MAX:
            if (rest := until - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in waits.select(rest):
                if key.data is None:
                    left = _said(key.fd, left)
                    is_over = not left
                else:
                    more = os.read(key.fd, CHUNK)
                    key.data.extend(more)
                    is_over = not more
                if is_over:
                    waits.unregister(key.fileobj)
                if is_over and key.data is None:
                    # By that it knows that it was told everything.
                    process.stdin.close()
    return bytes(out), bytes(err)


def _said(pipe: int, left: memoryview) -> memoryview:
    try:
        return left[os.write(pipe, left) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:
        # It has ended without having listened: its answer says why.
        return left[:0]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Without waiting for its pipes to close: tmux hands them to its server, and a server that is stuck keeps them."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
