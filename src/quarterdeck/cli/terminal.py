"""The terminal as a page that is drawn again and again: keys as they are pressed, and word of a new size.

Everything is put back as it was, however it ends, and also while it is put to sleep. Nothing here knows what is drawn.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Sequence
from types import FrameType, TracebackType

_BEGIN = "\x1b[?1049h\x1b[?25l"
_END = "\x1b[?25h\x1b[?1049l"
_STOPS = (signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)


class Screen:
    def __init__(self) -> None:
        self._keys = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._keys)
        # Not closed before the process ends: a thread that has news must not write to what bears the number by then.
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def __enter__(self) -> Screen:
        signal.signal(signal.SIGWINCH, lambda *_: self.wake())
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, where: TracebackType | None
    ) -> None:
        for number in (signal.SIGWINCH, *_STOPS):
            signal.signal(number, signal.SIG_DFL)
        self._end()

    def wake(self) -> None:
        """There is something new to draw. May be called from any thread."""
        try:
            os.write(self._wake, b"!")
        except BlockingIOError:
            return  # a full pipe wakes as well

    def wait(self, seconds: float) -> str:
        """The keys that were pressed; empty when the time is over or somebody woke us."""
        poll = select.poll()
        poll.register(self._keys, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        ready = dict(poll.poll(max(seconds, 0.0) * 1000))
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._keys not in ready:
            return ""
        # The end of the input is whoever watched going away.
        return os.read(self._keys, 64).decode("ascii", "replace") or "q"

    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        # Each line is cleared to its end, and not the page beforehand: that would flicker.
        sys.stdout.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def _begin(self) -> None:
        for number in _STOPS:
            signal.signal(number, self._stopped)
        tty.setcbreak(self._keys)
        _say(_BEGIN)

    def _end(self) -> None:
        _say(_END)
        termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        """The signal does what it always does, to a terminal that is as it was. After a sleep we are back here."""
        self._end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        self._begin()
        self.wake()


def _say(text: str) -> None:
    """Past the buffer: a signal may come in the middle of a drawing, whose buffer cannot be written to from within."""
    os.write(sys.stdout.fileno(), text.encode())
