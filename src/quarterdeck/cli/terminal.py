"""Full-screen terminal for `qd top`: draws frames, reads keys and reports size changes.

The terminal is restored on exit, on signals and while the process is stopped by Ctrl-Z. The caller decides what is
drawn.
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

_ENTER_SEQUENCE = "\x1b[?1049h\x1b[?25l"
_LEAVE_SEQUENCE = "\x1b[?25h\x1b[?1049l"
_STOP_SIGNALS = (signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP)


class Screen:
    def __init__(self) -> None:
        self._stdin_fd = sys.stdin.fileno()
        self._saved_attributes = termios.tcgetattr(self._stdin_fd)
        # Never closed: another thread may still call wake(), and must not write to a reused file descriptor.
        self._wake_read_fd, self._wake_write_fd = os.pipe()
        os.set_blocking(self._wake_write_fd, False)

    def __enter__(self) -> Screen:
        signal.signal(signal.SIGWINCH, lambda *_: self.wake())
        self._enter()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for signal_number in (signal.SIGWINCH, *_STOP_SIGNALS):
            signal.signal(signal_number, signal.SIG_DFL)
        self._leave()

    def wake(self) -> None:
        """Make `wait` return, to draw again. May be called from any thread."""
        try:
            os.write(self._wake_write_fd, b"!")
        except BlockingIOError:
            return  # the pipe is full, so `wait` returns anyway

    def wait(self, seconds: float) -> str:
        """Wait for keys and return them. Returns an empty string after the timeout or after `wake`."""
        poll = select.poll()
        poll.register(self._stdin_fd, select.POLLIN)
        poll.register(self._wake_read_fd, select.POLLIN)
        ready = dict(poll.poll(max(seconds, 0.0) * 1000))
        if self._wake_read_fd in ready:
            os.read(self._wake_read_fd, 4096)
        if self._stdin_fd not in ready:
            return ""
        # The end of the input means that the terminal was closed, so quit.
        return os.read(self._stdin_fd, 64).decode("ascii", "replace") or "q"

    def size(self) -> tuple[int, int]:
        """Return the number of columns and rows."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns or 80, size.lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        # Clear the rest of each line instead of the screen: clearing the screen first would flicker.
        sys.stdout.write("\x1b[H" + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        sys.stdout.flush()

    def _enter(self) -> None:
        for signal_number in _STOP_SIGNALS:
            signal.signal(signal_number, self._on_stop_signal)
        tty.setcbreak(self._stdin_fd)
        _write_unbuffered(_ENTER_SEQUENCE)

    def _leave(self) -> None:
        _write_unbuffered(_LEAVE_SEQUENCE)
        termios.tcsetattr(self._stdin_fd, termios.TCSADRAIN, self._saved_attributes)

    def _on_stop_signal(self, signal_number: int, frame: FrameType | None) -> None:
        """Restore the terminal, then let the signal take its default effect. After SIGTSTP, resume here on SIGCONT."""
        self._leave()
        signal.signal(signal_number, signal.SIG_DFL)
        os.kill(os.getpid(), signal_number)
        self._enter()
        self.wake()


def _write_unbuffered(text: str) -> None:
    """Write without the buffer: a signal handler may run during `draw`, and the buffer is not reentrant."""
    os.write(sys.stdout.fileno(), text.encode())
